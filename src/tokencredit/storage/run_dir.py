"""The run folder: what a run was, what it did, and what every token received. People and programs read the same files.

metrics.jsonl and plans.jsonl hold no clock, so two runs of one seed write the same bytes; clocks are in timing.jsonl.
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
"""The checkout that holds src/tokencredit, where the package runs from one."""

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
"""A line per training step, or per thing that happened at one."""

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


class RunDir:
    """Appends and writes; never reads a model or a config."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unsynced: set[Path] = set()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def begin(self, config_toml: str, ways: Mapping[str, Any] | None = None) -> None:
        """Made beside its place and renamed, so that a folder of this name always says how to go on.

        `ways`: which of its ways an engine took where it was left to choose.
        """
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}{PARTIAL}")
        try:
            (fresh / "tokens").mkdir(parents=True)
            made = RunDir(fresh)
            made.write_config(config_toml)
            made.write_json("env.json", describe_environment() | ({} if ways is None else {"ways": ways}))
            _remove_if_empty(self.checkpoints)
            fresh.rename(self.path)
        except (OSError, StorageError) as problem:
            shutil.rmtree(fresh, ignore_errors=True)
            said = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
            raise ConfigError(f"run folder {self.path} cannot be made: {said}") from None
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
        """Something a person should know of: what a guard refused, a warning, a retry."""
        self.append("events.jsonl", {"step": step, "kind": kind, "message": message, **(more or {})})

    def steps_reached(self) -> int:
        """What a finished run was asked for; 0 where there is no result, or none that can be read."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads((self.path / "result.json").read_text(encoding="utf-8"))["steps"])
        return 0

    def archive_result(self, steps: int) -> None:
        """A finished run that goes on to more `steps` is not finished; what it had reached is kept under the number of its own."""
        path, reached = self.path / "result.json", self.steps_reached()
        if path.exists() and reached < steps:
            with storage_errors(path):
                path.rename(path.with_name(f"result-{reached:06}.json"))

    def sync(self) -> None:
        """On the disk before a checkpoint says that these steps are done."""
        for path in self._unsynced:
            with storage_errors(path):
                sync(path)
        self._unsynced.clear()

    def read(self, name: str) -> list[dict[str, Any]]:
        """The rows of a file; a last line cut short by a crash is left out, any other broken line is refused."""
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
        """Finished files of training steps in a folder of the run; what a crash left half-written is not among them."""
        found = ((re.fullmatch(r"step-(\d+)\.(json|jsonl|parquet)", file.name), file) for file in (self.path / folder).glob("step-*"))
        return sorted((int(match[1]), file) for match, file in found if match is not None)

    def truncate_after(self, step: int) -> None:
        """Forget everything after training step `step`, so that a resumed run writes it once."""
        kept = {name: [row for row in self.read(name) if row["step"] <= step] for name in STEP_FILES if (self.path / name).exists()}
        # Resumes are history: none is forgotten, but a line that a crash cut short goes.
        kept |= {name: self.read(name) for name in ("resumes.jsonl",) if (self.path / name).exists()}
        for name, rows in kept.items():
            atomic_write(self.path / name, "".join(json.dumps(row) + "\n" for row in rows))
        for folder in ("tokens", "findings"):
            for number, file in self.step_files(folder):
                if number > step:
                    file.unlink()
        for place, dump in checkpoints_in(self.path / "guards"):
            if place.step > step:
                remove_folder(dump)
        for folder in (self.path, *(self.path / name for name in ("tokens", "findings", "checkpoints", "guards"))):
            clear_leftovers(folder)

    def write_tokens(self, step: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """One row per token."""
        _check_columns("token", columns, TOKEN_COLUMNS)
        self._write_table(self.path / "tokens" / f"step-{step:06}{best_suffix()}", columns)

    def write_findings(self, step: int, findings: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> None:
        """What a look at this training step found, in words and numbers, and the evidence for every token."""
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
    """An engine may have made the folder for its checkpoints already; renaming needs the place empty."""
    with suppress(OSError):
        folder.rmdir()


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
        "untracked": _untracked(),
    }


def _untracked() -> dict[str, str] | None:
    """Files of the package that git does not know, with their hashes: the diff is silent about them."""
    source, package = SOURCE, SOURCE / "src" / "tokencredit"
    listed = _git("ls-files", "--others", "--exclude-standard", "--", str(package))
    if listed is None:
        return None
    return {name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in listed.splitlines() if (source / name).is_file()}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """None where the package does not run from a checkout of its own source."""
    source = SOURCE
    if not (source / "pyproject.toml").is_file() or not (source / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(source), *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
