"""A finished run as one row of numbers. What is half-written is not read; what was trained otherwise is told apart."""

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tokencredit.config.resolve import read_toml, validated
from tokencredit.config.resume import SAVING, changes
from tokencredit.errors import ConfigError
from tokencredit.lab.compare.code import Code, code_of, same_code
from tokencredit.lab.compare.design import PlannedRun
from tokencredit.storage.run_dir import RunFolder

Row = dict[str, Any]
KEPT_VERSIONS = ("torch", "transformers", "tokencredit")


class Found(NamedTuple):
    state: Literal["missing", "half", "other-settings", "other-code", "done"]
    row: Row | None = None
    why: str = ""


def look(folder: Path, planned: PlannedRun, code: Code) -> Found:
    """What lies where the run belongs. `code` is what would train it now."""
    if not folder.is_dir():
        return Found("missing")
    try:
        result = _read_json(folder / "result.json")
    except _UnreadableError:
        return Found("half")
    try:
        found = changes(validated(read_toml(folder / "config.toml")), planned.config)
    except ConfigError as problem:
        return Found("other-settings", why=str(problem))
    differing = {name: values for name, values in found.items() if name not in SAVING}
    if differing:
        told = [f"{name} is {now!r} but was {before!r}" for name, (before, now) in differing.items()]
        return Found("other-settings", why="; ".join(told[:4]) + ("; …" if len(told) > 4 else ""))
    try:
        row = read_row(folder, planned, result)
    except (_UnreadableError, ConfigError, KeyError, IndexError, TypeError, ValueError):
        return Found("half")
    trained = Code(row["commit"], row["uncommitted"])
    if not same_code(trained, code):
        return Found("other-code", row, why=f"it was trained by {trained.told}, the code is {code.told}")
    return Found("done", row)


def read_row(folder: Path, planned: PlannedRun, result: dict[str, Any]) -> Row:
    metrics = RunFolder(folder).read("metrics.jsonl")
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
    """Sampled accuracy over rollouts. The base and the last policy are measured on more problems: those numbers stand at the ends."""
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
