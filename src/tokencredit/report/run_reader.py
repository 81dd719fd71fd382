"""Reads the files of a run folder and checks the tables and plans in them.

Every file except config.toml may be missing. A damaged file raises a ConfigError that names the file.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokencredit.config.messages import first_line, shortened
from tokencredit.config.resolve import read_toml
from tokencredit.errors import ConfigError

Columns = dict[str, list[Any]]

CHECKPOINT = re.compile(r"(step|checkpoint)-\d+(-\d+)?")

FINDING_PARTS = {"name": str, "note": str, "numbers": dict, "tables": dict}


@dataclass(frozen=True)
class Run:
    """A run folder, or the folder of a diagnosis. Files are read on first use and cached."""

    folder: Path

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise ConfigError(f"run {self.folder} does not exist; give a run folder")
        if not (self.folder / "config.toml").is_file():
            raise ConfigError(f"run {self.folder} is not a run folder: it has no config.toml")

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_toml(self.folder / "config.toml")

    @cached_property
    def environment(self) -> dict[str, Any]:
        return self._object("env.json")

    @cached_property
    def result(self) -> dict[str, Any]:
        """Empty if the run has not finished."""
        return self._object("result.json")

    def evaluated(self, when: str) -> dict[str, Any]:
        """The held-out evaluation "before" or "after" the run; empty if the run has not finished."""
        found = self.result.get(when)
        return found if isinstance(found, dict) else {}

    @cached_property
    def diagnosis(self) -> dict[str, Any]:
        """For a folder made by `tokencredit diagnose`: its command and its subject. Empty for a training run."""
        return self._object("diagnosis.json")

    @cached_property
    def data(self) -> dict[str, Any]:
        """Counts and fingerprints of the task's rows; empty for a task without files."""
        return self._object("data.json")

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return self._rows("metrics.jsonl")

    @cached_property
    def timing(self) -> list[dict[str, Any]]:
        return self._rows("timing.jsonl")

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Warnings, refused batches and other events; a run without incidents has none."""
        return self._rows("events.jsonl", needs=("step", "kind", "message"))

    @cached_property
    def resumes(self) -> list[dict[str, Any]]:
        return self._rows("resumes.jsonl")

    @cached_property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint was saved. The engine checks on resume whether it is valid."""
        return any(path.is_dir() and CHECKPOINT.fullmatch(path.name) for path in (self.folder / "checkpoints").glob("*"))

    @cached_property
    def plans(self) -> dict[int, dict[str, Any]]:
        rows = self._rows("plans.jsonl", needs=("step", "steps"))
        for number, row in enumerate(rows, 1):
            check_plan(f"{self.folder / 'plans.jsonl'} is damaged: line {number}", row)
        return {row["step"]: row for row in rows}

    @cached_property
    def token_steps(self) -> list[int]:
        return self._steps("tokens")

    @cached_property
    def finding_steps(self) -> list[int]:
        return sorted(_step_of(path) for path in (self.folder / "findings").glob("step-*.json"))

    def findings(self, step: int) -> dict[str, Any]:
        name = f"findings/step-{step:06}.json"
        found = self._object(name)
        for finding in found.setdefault("findings", []):
            missing = [key for key in FINDING_PARTS if not isinstance(finding, dict) or key not in finding]
            if missing:
                raise ConfigError(f"{self.folder / name} is damaged: a finding has no {missing[0]}")
            odd = [key for key, kind in FINDING_PARTS.items() if not isinstance(finding[key], kind)]
            odd += [] if odd else [table for table, rows in finding["tables"].items() if not _is_table(rows)]
            if odd:
                raise ConfigError(f"{self.folder / name} is damaged: {odd[0]!r} of a finding has another type than diagnose writes")
        return found

    def token_columns(self, step: int) -> Columns:
        return _columns(self.folder / "tokens" / f"step-{step:06}")

    def evidence_columns(self, step: int) -> Columns:
        return _columns(self.folder / "findings" / f"step-{step:06}")

    def _steps(self, name: str) -> list[int]:
        files = [path for path in (self.folder / name).glob("step-*") if path.suffix in (".parquet", ".jsonl")]
        return sorted({_step_of(path) for path in files})

    def _object(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        if not path.exists():
            return {}
        value = _json(path, _text(path))
        if not isinstance(value, dict):
            raise ConfigError(f"{path} is damaged: it holds {type(value).__name__}, not an object")
        return value

    def _rows(self, name: str, needs: Sequence[str] = ("step",)) -> list[dict[str, Any]]:
        path = self.folder / name
        return _json_lines(path, needs=needs) if path.exists() else []


def setting(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """`setting(config, "task.type")`, or the default if a part of the path is missing."""
    value: Any = config
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return default
        value = value[key]
    return value


def _step_of(path: Path) -> int:
    try:
        return int(path.stem.removeprefix("step-"))
    except ValueError:
        raise ConfigError(f"{path} does not name a training step; token and finding files are named like step-000020") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}") from None


def _json(path: Path, text: str, *, where: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"{path} is damaged: {where}not JSON ({str(problem)[:200]})") from None


def _json_lines(path: Path, *, needs: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a JSON lines file. An incomplete last line (from a running or killed run) is ignored; any other invalid line is an error."""
    text = _text(path)
    # splitlines would also split at separators inside a token's text, which JSON does not escape.
    lines = text.split("\n")[:-1]
    rows = [_json(path, line, where=f"line {number} is ") for number, line in enumerate(lines, 1)]
    for number, row in enumerate(rows, 1):
        missing = [key for key in needs if not isinstance(row, dict) or key not in row]
        if missing:
            raise ConfigError(f"{path} is damaged: line {number} has no {missing[0]}")
        if "step" in needs and not isinstance(row["step"], int):
            raise ConfigError(f"{path} is damaged: step of line {number} is {shortened(row['step'])}, not a whole number")
    return rows


def _columns(stem: Path) -> Columns:
    """The columns of the Parquet or JSON lines file, whichever exists; empty if neither does."""
    parquet, lines = stem.with_suffix(".parquet"), stem.with_suffix(".jsonl")
    if parquet.exists():
        columns = _parquet(parquet)
        path = parquet
    elif lines.exists():
        rows = _json_lines(lines, needs=("row", "position"))
        columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
        path = lines
    else:
        return {}
    missing = [name for name in ("row", "position") if name not in columns]
    if missing and columns:
        raise ConfigError(f"{path} has no column {missing[0]!r}; it has {shortened(', '.join(columns))}")
    check_columns(f"{path} is damaged", columns)
    return columns


def _parquet(path: Path) -> Columns:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(f"{path} needs pyarrow to be read; install it") from None
    try:
        table = parquet.read_table(path, page_checksum_verification=True)
        return {name: table.column(name).to_pylist() for name in table.column_names}
    except (OSError, ValueError, OverflowError, LookupError, pyarrow.ArrowException) as problem:
        # Causes: not Parquet, two columns of one name, text that is not UTF-8, a timestamp out of range.
        raise ConfigError(f"{path} cannot be read as Parquet: {first_line(problem)}") from None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_integer_or_none(value: Any) -> bool:
    return value is None or _is_integer(value)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


OF_COLUMNS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "row": (_is_integer, "a whole number"),
    "position": (_is_integer, "a whole number"),
    "group": (_is_integer, "a whole number"),
    "token_id": (_is_integer_or_none, "a whole number"),
    "optimizer_step": (_is_integer_or_none, "a whole number"),
    "prompt": (_is_text_or_none, "text"),
    "text": (_is_text_or_none, "text"),
    "token_class": (_is_text_or_none, "text"),
    "step_right": (lambda value: value in (None, True, False), "true or false"),
}
"""Columns that are used as counts, keys or sort keys: column -> check, description. In other columns an invalid cell becomes None."""


def check_columns(prefix: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Raise ConfigError, with a message that starts with `prefix`, if a cell is invalid or a token occurs twice."""
    for name, (holds, what) in OF_COLUMNS.items():
        for at, value in enumerate(columns.get(name, ())):
            if not holds(value):
                raise ConfigError(f"{prefix}: {name} of line {at + 1} is {shortened(value)}, not {what}")
    if len(set(zip(columns.get("row", ()), columns.get("position", ()), strict=True))) < len(columns.get("row", ())):
        raise ConfigError(f"{prefix}: a token occurs twice")


def check_plan(prefix: str, plan: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the plan is a list of optimizer steps, each with micro-batches of rows."""
    steps = plan["steps"]
    if not isinstance(steps, list) or not all(isinstance(step, dict) and _are_rows(step.get("micro_batches")) for step in steps):
        raise ConfigError(f"{prefix} has steps {shortened(steps)}; each needs micro_batches, lists of rows")


def _are_rows(batches: Any) -> bool:
    return isinstance(batches, list) and all(isinstance(batch, list) and all(map(_is_integer, batch)) for batch in batches)


def _is_table(rows: Any) -> bool:
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
