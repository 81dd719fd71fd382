"""The run folder: what a run was, what it did, and what every token received. People and programs read the same files.

metrics.jsonl and plans.jsonl hold no clock, so two runs of one seed write the same bytes; clocks are in timing.jsonl.
"""

import json
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.errors import ConfigError
from tokencredit.tables import best_suffix, write_table

if TYPE_CHECKING:
    from tokencredit.types import StepPlan

PACKAGES = (
    "tokencredit",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pyarrow",
    "pydantic",
    "tyro",
    "rich",
    "altair",
    "vl-convert-python",
)

TOKEN_COLUMNS = (
    "step", "row", "group", "position", "prompt", "text", "token_class", "step_right", "token_id", "logp", "behavior_logp", "entropy",
    "score", "reward", "advantage", "coefficient", "credit", "optimizer_step",
)  # fmt: skip
"""`step_right`: whether the reasoning step the token belongs to is right, None where the task cannot tell."""

EVIDENCE_COLUMNS = (
    "step", "row", "position",
    "change_first", "change_step",
    "predicted_first", "predicted_first_positive", "predicted_first_negative", "predicted_step",
    "raw_positive", "raw_negative", "raw_mini_positive", "raw_mini_negative", "cancellation", "cancellation_mini",
    "kl", "entropy_after", "coupling_own", "coupling_same", "coupling_other", "value_before", "value_after",
)  # fmt: skip
"""What an update did to each token that was looked at; None where something was not asked for."""


class RunFolder:
    """Appends and writes; never reads a model or a config."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def begin(self, config_toml: str) -> None:
        try:
            (self.path / "tokens").mkdir(parents=True)
        except OSError as problem:
            raise ConfigError(f"run folder {self.path} cannot be made: {problem.strerror or problem}") from None
        self._write("config.toml", config_toml)
        self.write_json("env.json", describe_environment())

    def _write(self, name: str, text: str) -> None:
        """Whole or not at all: a crash leaves the file that was there."""
        partial = self.path / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(self.path / name)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self._write(name, json.dumps(value, indent=2) + "\n")

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def append_plan(self, step: int, plan: "StepPlan") -> None:
        self.append("plans.jsonl", {"step": step, "digest": plan.digest, **plan.to_json()})

    def read(self, name: str) -> list[dict[str, Any]]:
        """The rows of a file; a last line cut short by a crash is left out, any other broken line is refused."""
        path = self.path / name
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                if number < len(lines):
                    raise ConfigError(f"{path} is damaged: line {number} is not JSON") from None
        return rows

    def step_files(self, folder: str) -> list[tuple[int, Path]]:
        """Finished files of training steps in a folder of the run; what a crash left half-written is not among them."""
        found = ((re.fullmatch(r"step-(\d+)\.(json|jsonl|parquet)", file.name), file) for file in (self.path / folder).glob("step-*"))
        return sorted((int(match[1]), file) for match, file in found if match is not None)

    def rewind(self, step: int) -> None:
        """Forget everything after training step `step`, so that a resumed run writes it once."""
        for name in ("metrics.jsonl", "timing.jsonl", "plans.jsonl"):
            kept = [row for row in self.read(name) if row["step"] <= step]
            self._write(name, "".join(json.dumps(row) + "\n" for row in kept))
        for folder in ("tokens", "findings"):
            for number, file in self.step_files(folder):
                if number > step:
                    file.unlink()
            for file in (self.path / folder).glob("*.partial"):
                file.unlink()

    def write_tokens(self, step: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """One row per token."""
        _check_columns("token", columns, TOKEN_COLUMNS)
        write_table(self.path / "tokens" / f"step-{step:06}{best_suffix()}", columns)

    def write_findings(self, step: int, findings: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> None:
        """What a look at this training step found, in words and numbers, and the evidence for every token."""
        _check_columns("evidence", columns, EVIDENCE_COLUMNS)
        (self.path / "findings").mkdir(exist_ok=True)
        write_table(self.path / "findings" / f"step-{step:06}{best_suffix()}", columns)
        self.write_json(f"findings/step-{step:06}.json", findings)


def _check_columns(what: str, columns: Mapping[str, Sequence[Any]], expected: tuple[str, ...]) -> None:
    if tuple(columns) != expected:
        raise ValueError(f"{what} columns are {tuple(columns)}; they must be {expected}")


def describe_environment() -> dict[str, Any]:
    """Versions, platform, and the code's own commit with whatever differs from it."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _git("rev-parse", "HEAD"),
        "diff": _git("diff", "HEAD"),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """None where the package does not run from a checkout of its own source."""
    source = Path(__file__).resolve().parents[2]
    if not (source / "pyproject.toml").is_file() or not (source / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(source), *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
