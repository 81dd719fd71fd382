"""Asks `interpreted_fused`, in a process of its own, how far versions of the fused path are from the plain twin."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tokencredit.credit.delta import triton
from tokencredit.kernels.delta import reference

FOLDER = Path(reference.__file__).parent
SOURCES = {"rows": FOLDER / "triton_layout.py", "scores": FOLDER / "triton_scores.py", "fused": Path(triton.__file__)}


def interpreted(changed: dict[str, tuple[dict[str, Path], str | None]]) -> dict[str, dict[str, float]]:
    """Gaps by version and case; a version is the modules that are not the real ones, and the case asked for (None: all)."""
    asked = {version: ({name: str(path) for name, path in (SOURCES | paths).items()}, case) for version, (paths, case) in changed.items()}
    command = [sys.executable, "-m", "oracle.interpreted_fused", json.dumps(asked)]
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    done = subprocess.run(command, env=environment, cwd=tests, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
