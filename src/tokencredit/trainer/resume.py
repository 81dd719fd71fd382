"""Where a stopped or killed run goes on: the newest checkpoint that is whole, if the configuration may go on at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokencredit.config.resolve import read_toml, resolve, to_toml
from tokencredit.config.resume import accepted_changes
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.storage.checkpoints import newest_intact, set_aside
from tokencredit.storage.run_dir import RunDir
from tokencredit.trainer.checkpoint import TrainState, load_train_state


class ResumePoint(NamedTuple):
    checkpoint: Path | None
    """None: the run was killed before its first checkpoint and begins again."""
    state: TrainState | None
    damaged: dict[Path, str]
    changed: dict[str, tuple[Any, Any]]


def find_resume_point(folder: RunDir, config: TrainConfig) -> ResumePoint:
    """Reads only. A folder whose checkpoints are all damaged is refused: beginning again would throw its record away."""
    found = newest_intact(folder.checkpoints)
    if found.newest is None and (found.damaged or _holds_others(folder.checkpoints)):
        wrong = "; ".join(f"{path.name}: {why}" for path, why in found.damaged.items()) or "it holds none that this version wrote"
        raise ConfigError(f"resume {folder.path} has no checkpoint that is whole ({wrong}); start a run of its own")
    state = None if found.newest is None else load_train_state(found.newest)
    changed = accepted_changes(resolve([read_toml(folder.path / "config.toml")]), config)
    return ResumePoint(found.newest, state, found.damaged, changed)


def _holds_others(checkpoints: Path) -> bool:
    return any(path.is_dir() and not path.name.endswith((".partial", ".removed")) for path in checkpoints.glob("*"))


def continue_from(point: ResumePoint, folder: RunDir, config: TrainConfig, ways: Mapping[str, Any]) -> list[str]:
    """From here on the folder changes: damaged checkpoints are set aside, and what came after the good one is forgotten.

    `ways`: those that the run takes from here on, perhaps on another machine. Returns what a person should know of it.
    """
    step, optimizer_step = (0, 0) if point.state is None else point.state.place
    folder.truncate_after(step)
    told: list[str] = []
    for path, wrong in point.damaged.items():
        told.append(f"checkpoint {path.name} was passed over: {wrong}; what is left of it is in {set_aside(path).name}")
        folder.append_event(step, "damaged", told[-1])
    folder.archive_result(config.steps)
    if point.changed:
        folder.write_config(to_toml(config))
    folder.append("resumes.jsonl", {"step": step, "optimizer_step": optimizer_step, "changed": point.changed, "ways": ways})
    return told
