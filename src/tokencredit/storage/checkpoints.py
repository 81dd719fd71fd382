"""Checkpoints of a run by name: list them, find the newest intact one, decide which to keep.

`step-000040` is the state after 40 training steps; `step-000040-2` after two optimizer steps of the 41st.
No pointer names the newest checkpoint: it is the newest folder whose manifest verifies.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tokencredit.storage.atomic import remove_folder, storage_errors
from tokencredit.storage.manifest import damage

DAMAGED = "damaged-"


class CheckpointPosition(NamedTuple):
    """How far a run has trained. Positions sort in training order."""

    step: int
    """Finished training steps."""
    optimizer_step: int = 0
    """Optimizer steps done within the next training step."""

    @property
    def name(self) -> str:
        return f"step-{self.step:06}" + (f"-{self.optimizer_step}" if self.optimizer_step else "")


class Search(NamedTuple):
    newest: Path | None
    """The newest intact checkpoint; None where there is none."""
    damaged: dict[Path, str]
    """Newer checkpoints that were skipped -> what is wrong with each."""


def parse_position(name: str) -> CheckpointPosition | None:
    """The position that a checkpoint's folder name states; None for any other name."""
    match = re.fullmatch(r"step-(\d{6,})(?:-(\d+))?", name)
    return None if match is None else CheckpointPosition(int(match[1]), int(match[2] or 0))


def checkpoints_in(parent: Path) -> list[tuple[CheckpointPosition, Path]]:
    """All checkpoints, oldest first. Their manifests are not verified."""
    found = ((parse_position(path.name), path) for path in parent.glob("step-*") if path.is_dir())
    return sorted((position, path) for position, path in found if position is not None)


def newest_intact(parent: Path) -> Search:
    """Verify manifests from the newest checkpoint backwards until one is intact."""
    damaged: dict[Path, str] = {}
    for _, path in reversed(checkpoints_in(parent)):
        wrong = damage(path)
        if wrong is None:
            return Search(path, damaged)
        damaged[path] = wrong
    return Search(None, damaged)


def best_model(run: Path) -> Path | None:
    """The checkpoint that the run recorded as its best, if it is intact, else the newest intact one; None where there is none.

    result.json states the best step of a finished run, the newest checkpoint's state.json that of a stopped one.
    """
    newest = newest_intact(run / "checkpoints").newest
    for record in (run / "result.json", *(() if newest is None else (newest / "state.json",))):
        with suppress(OSError, ValueError, KeyError, TypeError):
            step = int(json.loads(record.read_text(encoding="utf-8"))["best_step"])
            best = run / "checkpoints" / CheckpointPosition(step).name
            if step > 0 and best.is_dir() and damage(best) is None:
                return best
    return newest


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint: its name is free again and its remaining files are kept."""
    aside = path.with_name(DAMAGED + path.name)
    if aside.exists():
        remove_folder(aside)
    with storage_errors(path):
        path.rename(aside)
    return aside


def to_keep(
    positions: Iterable[CheckpointPosition], best: Mapping[CheckpointPosition, int], *, last: int, every: int
) -> set[CheckpointPosition]:
    """The newest `last` checkpoints, every `every`-th training step, and the best step so far as each of the newest recorded it."""
    known = sorted(positions)
    newest = known[-last:]
    kept = set(newest) | {one for one in known if every and one.optimizer_step == 0 and one.step % every == 0}
    best_steps = {best.get(one, 0) for one in newest} - {0}
    return kept | {one for one in known if one.optimizer_step == 0 and one.step in best_steps}
