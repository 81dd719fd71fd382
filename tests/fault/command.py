"""The real command in a process of its own."""

import subprocess
import sys
from pathlib import Path

SMALL = [
    "--sampling.prompts", "4", "--sampling.group-size", "4", "--optimizer.steps-per-batch", "2", "--evaluation.problems", "8",
    "--evaluation.samples", "2", "--evaluation.final-problems", "8", "--evaluation.final-samples", "2", "--evaluation.every", "2",
]  # fmt: skip


def tokencredit(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tokencredit", *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
