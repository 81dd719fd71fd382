"""The run folder: config, environment, metrics, plans, events, and every token's credit. People and programs read the same files.

metrics.jsonl and plans.jsonl hold no times, so two runs of one seed write the same bytes; times are in timing.jsonl.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.errors import ConfigError, StorageError
from tokencredit.storage.atomic import PARTIAL, atomic_write, clear_leftovers, remove_folder, storage_errors, sync
from tokencredit.storage.checkpoints import checkpoints_in
from tokencredit.storage.table_file import best_suffix, write_table

if TYPE_CHECKING:
    from tokencredit.types import StepPlan

SOURCE = Path(__file__).resolve().parents[3]
"""The root of the source checkout, where the package runs from one."""

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
    "math-verify",
    "reasoning-gym",
    "peft",
    "altair",
    "vl-convert-python",
)

STEP_FILES = ("metrics.jsonl", "timing.jsonl", "plans.jsonl", "events.jsonl")
"""One line per training step; events.jsonl has one line per event."""

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
"""The microscope's evidence for each observed token; None where a quantity was not requested."""


class RunDir:
    """Writes and reads the files of one run folder; never reads a model or a config."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unsynced: set[Path] = set()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def create(self, config_toml: str, fast_paths: Mapping[str, Any] | None = None) -> None:
        """Write config.toml and env.json into a temporary folder and rename it: a run folder always holds what a resume needs.

        `fast_paths` (`ways` in env.json): which implementation the engine chose for each part that has a fast path.
        """
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}{PARTIAL}")
        try:
            (fresh / "tokens").mkdir(parents=True)
            created = RunDir(fresh)
            created.write_config(config_toml)
            created.write_json("env.json", describe_environment() | ({} if fast_paths is None else {"ways": fast_paths}))
            _remove_if_empty(self.checkpoints)
            fresh.rename(self.path)
        except (OSError, StorageError) as problem:
            shutil.rmtree(fresh, ignore_errors=True)
            reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
            raise ConfigError(f"run folder {self.path} cannot be created: {reason}") from None
        sync(self.path.parent)

    def write_config(self, config_toml: str) -> None:
        atomic_write(self.path / "config.toml", config_toml)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        atomic_write(self.path / name, json.dumps(value, indent=2) + "\n")

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        path = self.path / name
        with storage_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._unsynced.add(path)

    def append_plan(self, step: int, plan: "StepPlan") -> None:
        self.append("plans.jsonl", {"step": step, "digest": plan.digest, **plan.to_json()})

    def append_event(self, step: int, kind: str, message: str, more: Mapping[str, Any] | None = None) -> None:
        """Record an event that the user should know of: a batch that a guard refused, a warning, a retry."""
        self.append("events.jsonl", {"step": step, "kind": kind, "message": message, **(more or {})})

    def steps_reached(self) -> int:
        """The `steps` of a finished run; 0 where there is no readable result.json."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads((self.path / "result.json").read_text(encoding="utf-8"))["steps"])
        return 0

    def archive_result(self, steps: int) -> None:
        """Rename result.json of a finished run that is extended to more `steps`: the run is unfinished again, its old result is kept."""
        path, reached = self.path / "result.json", self.steps_reached()
        if path.exists() and reached < steps:
            with storage_errors(path):
                path.rename(path.with_name(f"result-{reached:06}.json"))

    def sync(self) -> None:
        """Flush appended rows to the disk, before a checkpoint states that their steps are done."""
        for path in self._unsynced:
            with storage_errors(path):
                sync(path)
        self._unsynced.clear()

    def read(self, name: str) -> list[dict[str, Any]]:
        """The rows of a JSON-lines file. A crash may cut off the last line, which is skipped; any other broken line is a ConfigError."""
        path = self.path / name
        try:
            lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"{path} is damaged: it cannot be read ({problem})") from None
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
            elif number < len(lines):
                raise ConfigError(f"{path} is damaged: line {number} is not JSON with the number of a step")
        return rows

    def step_files(self, folder: str) -> list[tuple[int, Path]]:
        """Complete per-step files in a folder of the run, in step order; temporary files that a crash left are not listed."""
        found = ((re.fullmatch(r"step-(\d+)\.(json|jsonl|parquet)", file.name), file) for file in (self.path / folder).glob("step-*"))
        return sorted((int(match[1]), file) for match, file in found if match is not None)

    def truncate_after(self, step: int) -> None:
        """Delete every record after training step `step`, so that a resumed run writes each step once.

        resumes.jsonl keeps all its rows; only a line that a crash cut off is dropped.
        """
        kept = {name: [row for row in self.read(name) if row["step"] <= step] for name in STEP_FILES if (self.path / name).exists()}
        kept |= {name: self.read(name) for name in ("resumes.jsonl",) if (self.path / name).exists()}
        for name, rows in kept.items():
            atomic_write(self.path / name, "".join(json.dumps(row) + "\n" for row in rows))
        for folder in ("tokens", "findings"):
            for number, file in self.step_files(folder):
                if number > step:
                    file.unlink()
        for position, dump in checkpoints_in(self.path / "guards"):
            if position.step > step:
                remove_folder(dump)
        for folder in (self.path, *(self.path / name for name in ("tokens", "findings", "checkpoints", "guards"))):
            clear_leftovers(folder)

    def write_tokens(self, step: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """One row per token."""
        _check_columns("token", columns, TOKEN_COLUMNS)
        self._write_table(self.path / "tokens" / f"step-{step:06}{best_suffix()}", columns)

    def write_findings(self, step: int, findings: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> None:
        """Save the microscope's findings of this training step as JSON, and its evidence for every token as a table."""
        _check_columns("evidence", columns, EVIDENCE_COLUMNS)
        with storage_errors(self.path / "findings"):
            (self.path / "findings").mkdir(exist_ok=True)
        self._write_table(self.path / "findings" / f"step-{step:06}{best_suffix()}", columns)
        self.write_json(f"findings/step-{step:06}.json", findings)

    def _write_table(self, path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
        with storage_errors(path):
            write_table(path, columns)
        self._unsynced.add(path)


def _remove_if_empty(folder: Path) -> None:
    """An engine may have created an empty checkpoints folder already; the rename needs the run's path to be empty."""
    with suppress(OSError):
        folder.rmdir()


def _check_columns(what: str, columns: Mapping[str, Sequence[Any]], expected: tuple[str, ...]) -> None:
    if tuple(columns) != expected:
        raise ValueError(f"{what} columns are {tuple(columns)}; they must be {expected}")


def describe_environment() -> dict[str, Any]:
    """Package versions, platform, and the commit of the source with its uncommitted changes."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _git("rev-parse", "HEAD"),
        "diff": _git("diff", "HEAD"),
        "untracked": _untracked(),
    }


def _untracked() -> dict[str, str] | None:
    """Untracked files of the package with their hashes: `git diff` does not list them."""
    listed = _git("ls-files", "--others", "--exclude-standard", "--", str(SOURCE / "src" / "tokencredit"))
    if listed is None:
        return None
    return {name: hashlib.sha256((SOURCE / name).read_bytes()).hexdigest() for name in listed.splitlines() if (SOURCE / name).is_file()}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """The output of a git command; None where it fails or the package does not run from its own checkout."""
    if not (SOURCE / "pyproject.toml").is_file() or not (SOURCE / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(SOURCE), *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
