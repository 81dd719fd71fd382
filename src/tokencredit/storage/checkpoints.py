"""Checkpoints of a run by name: which there are, which are whole, which to keep.

`step-000040` is the state after 40 training steps; `step-000040-2` after two more optimizer steps of the 41st.
There is no pointer to the newest: the newest folder whose manifest verifies is the one.
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


class Place(NamedTuple):
    """Where a run stands. Ordered as training goes."""

    step: int
    """Training steps finished."""
    optimizer_step: int = 0
    """Optimizer steps taken of the next one."""

    @property
    def name(self) -> str:
        return f"step-{self.step:06}" + (f"-{self.optimizer_step}" if self.optimizer_step else "")


class Search(NamedTuple):
    newest: Path | None
    damaged: dict[Path, str]
    """Newer ones that were passed over, and what is wrong with each."""


def named_place(name: str) -> Place | None:
    match = re.fullmatch(r"step-(\d{6,})(?:-(\d+))?", name)
    return None if match is None else Place(int(match[1]), int(match[2] or 0))


def checkpoints_in(parent: Path) -> list[tuple[Place, Path]]:
    """Oldest first; whether they are whole is not looked at."""
    return sorted((place, path) for path in parent.glob("step-*") if path.is_dir() and (place := named_place(path.name)) is not None)


def newest_whole(parent: Path) -> Search:
    damaged: dict[Path, str] = {}
    for _, path in reversed(checkpoints_in(parent)):
        wrong = damage(path)
        if wrong is None:
            return Search(path, damaged)
        damaged[path] = wrong
    return Search(None, damaged)


def best_model(run: Path) -> Path | None:
    """The whole checkpoint that a run calls its best, else its newest whole one; None where there is none."""
    newest = newest_whole(run / "checkpoints").newest
    for told in (run / "result.json", *(() if newest is None else (newest / "state.json",))):
        with suppress(OSError, ValueError, KeyError, TypeError):
            step = int(json.loads(told.read_text(encoding="utf-8"))["best_step"])
            best = run / "checkpoints" / Place(step).name
            if step > 0 and best.is_dir() and damage(best) is None:
                return best
    return newest


def set_aside(path: Path) -> Path:
    """Free the name of a damaged checkpoint without losing what is left of it."""
    aside = path.with_name(DAMAGED + path.name)
    if aside.exists():
        remove_folder(aside)
    with storage_errors(path):
        path.rename(aside)
    return aside


def to_keep(places: Iterable[Place], best: Mapping[Place, int], *, last: int, every: int) -> set[Place]:
    """The last few, every M-th training step, and what each of the last few calls the best step so far."""
    known = sorted(places)
    newest = known[-last:]
    kept = set(newest) | {place for place in known if every and place.optimizer_step == 0 and place.step % every == 0}
    called_best = {best.get(one, 0) for one in newest} - {0}
    return kept | {place for place in known if place.optimizer_step == 0 and place.step in called_best}
