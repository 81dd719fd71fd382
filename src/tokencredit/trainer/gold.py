"""Gold answers are graded before anything is trained on: a row whose own answer is not right can teach nothing."""

import json
from pathlib import Path

from tokencredit.errors import ConfigError
from tokencredit.storage.run_dir import RunFolder
from tokencredit.tasks import GoldChecking, GoldReport, Task

GOLD_FILE, NAMED = "gold.json", 3


def check_gold(task: Task, folder: RunFolder) -> GoldReport | None:
    """None where there is nothing to check, or where this run has checked before: then the same rows are left out again."""
    if not isinstance(task, GoldChecking):
        return None
    stored = folder.path / GOLD_FILE
    if not stored.is_file():
        return task.check_gold()
    task.leave_out(_read(stored))
    return None


def _read(path: Path) -> list[tuple[int, str]]:
    try:
        return [(int(line), str(reason)) for line, reason in json.loads(path.read_text(encoding="utf-8"))["failed"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}; without it a resumed run might ask other questions") from None


def write_gold(report: GoldReport, folder: RunFolder) -> str | None:
    """Returns what a person should know of it."""
    said = None
    if report.failed:
        named = "; ".join(f"line {line} of {reason}" for line, reason in report.failed[:NAMED])
        more = f"; and {len(report.failed) - NAMED} more" if len(report.failed) > NAMED else ""
        said = f"{len(report.failed)} of {report.checked} gold answers are not graded right and are not asked: {named}{more}"
        if all(event.get("message") != said for event in folder.read("events.jsonl")):
            folder.append_event(0, "gold", said, {"failed": len(report.failed), "checked": report.checked})
    folder.write_json(GOLD_FILE, {"checked": report.checked, "failed": report.failed})
    return said
