"""Reads the run directories of a comparison: which planned runs are finished, by which code, and their numbers as rows."""

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tokencredit.config.resolve import read_toml, validated
from tokencredit.config.resume import SAVING, changes
from tokencredit.errors import ConfigError
from tokencredit.lab.compare.design import PlannedRun
from tokencredit.storage.run_dir import RunDir

SOURCE = Path(__file__).resolve().parents[4]
PACKAGE = "src/tokencredit"
TELLS = tuple(f"{PACKAGE}/{part}" for part in ("lab/", "report/"))
"""Files that training does not depend on. The configurations they produce are compared separately."""


def trains(path: str) -> bool:
    """Whether a change of this file could change a run."""
    return path.startswith(f"{PACKAGE}/") and not path.startswith(TELLS)


class Code(NamedTuple):
    commit: str | None
    uncommitted: str | None
    """Hash of the training code's changes since the commit; None without changes."""

    @property
    def description(self) -> str:
        name = "no known commit" if self.commit is None else f"commit {self.commit[:12]}"
        return name if self.uncommitted is None else f"{name} with uncommitted changes {self.uncommitted}"


def code_of(environment: Mapping[str, Any]) -> Code:
    """The code version in a run's env.json, or of this process."""
    parts = re.split(r"^diff --git a/", environment["diff"] or "", flags=re.MULTILINE)
    own = "".join(part.strip() + "\n" for part in parts if any(map(trains, part.partition("\n")[0].split(" b/"))))
    own += "".join(f"{name} {digest}\n" for name, digest in sorted((environment.get("untracked") or {}).items()) if trains(name))
    return Code(environment["commit"], hashlib.sha256(own.encode()).hexdigest()[:12] if own else None)


def same_code(one: Code, other: Code) -> bool:
    if one.uncommitted != other.uncommitted:
        return False
    if one.commit == other.commit:
        return True
    if one.commit is None or other.commit is None:
        return False
    package = package_at(one.commit)
    return package is not None and package == package_at(other.commit)


@cache
def package_at(commit: str) -> str | None:
    """The hash of the training code at a commit; None if git does not know it."""
    command = ["git", "-C", str(SOURCE), "ls-tree", "-r", "--full-tree", commit, "--", f"{PACKAGE}/"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    own = [line for line in done.stdout.splitlines() if trains(line.partition("\t")[2])]
    return hashlib.sha256("\n".join(own).encode()).hexdigest()[:12] if own else None


Row = dict[str, Any]
KEPT_VERSIONS = ("torch", "transformers", "tokencredit")


class RunInspection(NamedTuple):
    state: Literal["missing", "half", "other-settings", "other-code", "done"]
    row: Row | None = None
    why: str = ""


def inspect_run(folder: Path, planned: PlannedRun, code: Code) -> RunInspection:
    """The state of a planned run's directory. `code` is the code that would train it now; an unfinished run is `half`."""
    if not folder.is_dir():
        return RunInspection("missing")
    try:
        result = _read_json(folder / "result.json")
    except _UnreadableError:
        return RunInspection("half")
    try:
        found = changes(validated(read_toml(folder / "config.toml")), planned.config)
    except ConfigError as problem:
        return RunInspection("other-settings", why=str(problem))
    differing = {name: values for name, values in found.items() if name not in SAVING}
    if differing:
        reasons = [f"{name} is {now!r} but was {before!r}" for name, (before, now) in differing.items()]
        return RunInspection("other-settings", why="; ".join(reasons[:4]) + ("; …" if len(reasons) > 4 else ""))
    try:
        row = read_row(folder, planned, result)
    except (_UnreadableError, ConfigError, KeyError, IndexError, TypeError, ValueError):
        return RunInspection("half")
    trained = Code(row["commit"], row["uncommitted"])
    if not same_code(trained, code):
        return RunInspection("other-code", row, why=f"it was trained by {trained.description}, the code is {code.description}")
    return RunInspection("done", row)


def read_row(folder: Path, planned: PlannedRun, result: dict[str, Any]) -> Row:
    metrics = RunDir(folder).read("metrics.jsonl")
    if [row["step"] for row in metrics] != list(range(1, planned.config.steps + 1)) or result["steps"] != planned.config.steps:
        raise _UnreadableError(folder)
    environment, data = _read_json(folder / "env.json"), _read_json(folder / "data.json")
    code = code_of(environment)
    return {
        "recipe": planned.arm,
        "base": planned.base,
        "rate": planned.rate,
        "seed": planned.seed,
        "tuning": planned.tuning,
        "folder": str(planned.path),
        "commit": code.commit,
        "uncommitted": code.uncommitted,
        "versions": {"python": environment["python"]} | {name: environment["packages"].get(name) for name in KEPT_VERSIONS},
        "held_out_sha256": data["held_out"]["sha256"],
        "first_prompts_sha256": data["first_step"]["sha256"],
        "before": result["before"],
        "after": result["after"],
        "rollouts": result["rollouts_used"],
        "curve": _curve(metrics, result),
        "entropy": next((row["entropy"] for row in reversed(metrics) if "entropy" in row), None),
        "best_step": result["best_step"],
        "seconds": sum(result["seconds"].values()),
    }


def _curve(metrics: list[dict[str, Any]], result: dict[str, Any]) -> list[list[float]]:
    """Sampled accuracy over rollouts. The first and last point are the evaluations of the base and the final policy, on more problems."""
    inner = [[row["rollouts_used"], row["held_out/sampled"]] for row in metrics[:-1] if "held_out/sampled" in row]
    return [[0, result["before"]["sampled"]], *inner, [result["rollouts_used"], result["after"]["sampled"]]]


class _UnreadableError(Exception):
    pass


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise _UnreadableError(path) from problem
    if not isinstance(value, dict):
        raise _UnreadableError(path)
    return value


Stale = Literal["refuse", "retrain", "keep"]


class ExistingRuns(NamedTuple):
    rows: list[Row]
    to_do: list[PlannedRun]


def existing_runs(runs: Sequence[PlannedRun], out: Path, *, code: Code, stale: Stale) -> ExistingRuns:
    """Split planned runs into finished rows and runs to train. A half-written run is trained again.

    A run with other settings is refused, or trained again with `stale` `retrain`; one of other code may also be kept.
    """
    existing = ExistingRuns([], [])
    for run in runs:
        found = inspect_run(out / run.path, run, code)
        if found.state == "done" or (found.state == "other-code" and stale == "keep"):
            assert found.row is not None
            existing.rows.append(found.row)
            continue
        if found.state in ("other-settings", "other-code") and stale != "retrain":
            keep = " or use it with --stale keep" if found.state == "other-code" else ""
            raise ConfigError(
                f"{out / run.path} ({run.description}) is finished but cannot be used: {found.why}; name another --out, retrain it with "
                f"--stale retrain{',' if keep else ''}{keep}"
            )
        existing.to_do.append(run)
    return existing
