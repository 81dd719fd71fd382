"""Resume a stopped or killed run from its newest intact checkpoint, if the changed settings allow it."""

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
    """None: the run was killed before its first checkpoint and starts again."""
    state: TrainState | None
    damaged: dict[Path, str]
    changed: dict[str, tuple[Any, Any]]


def find_resume_point(folder: RunDir, config: TrainConfig) -> ResumePoint:
    """Find where to resume; writes nothing. A folder with only damaged checkpoints is refused: a restart would drop its record."""
    found = newest_intact(folder.checkpoints)
    if found.newest is None and (found.damaged or _has_unknown_folders(folder.checkpoints)):
        wrong = "; ".join(f"{path.name}: {why}" for path, why in found.damaged.items()) or "it holds none that this version wrote"
        raise ConfigError(f"resume {folder.path} has no intact checkpoint ({wrong}); start a run of its own")
    state = None if found.newest is None else load_train_state(found.newest)
    changed = accepted_changes(resolve([read_toml(folder.path / "config.toml")]), config)
    return ResumePoint(found.newest, state, found.damaged, changed)


def _has_unknown_folders(checkpoints: Path) -> bool:
    return any(path.is_dir() and not path.name.endswith((".partial", ".removed")) for path in checkpoints.glob("*"))


def continue_from(point: ResumePoint, folder: RunDir, config: TrainConfig, fast_paths: Mapping[str, Any]) -> list[str]:
    """Change the folder: set damaged checkpoints aside and truncate records after the resume point.

    `fast_paths`: those of the resumed run, perhaps on another machine. Returns messages for the user.
    """
    step, optimizer_step = (0, 0) if point.state is None else point.state.position
    folder.truncate_after(step)
    messages: list[str] = []
    for path, wrong in point.damaged.items():
        messages.append(f"checkpoint {path.name} was skipped: {wrong}; its remains are in {set_aside(path).name}")
        folder.append_event(step, "damaged", messages[-1])
    folder.archive_result(config.steps)
    if point.changed:
        folder.write_config(to_toml(config))
    folder.append("resumes.jsonl", {"step": step, "optimizer_step": optimizer_step, "changed": point.changed, "ways": fast_paths})
    return messages
