"""A run goes on as it was configured. What may differ is on a short list; everything else is refused by name.

Paths of a configuration made absolute when a run begins, so that it can go on from anywhere and means the same then.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.models import pinned_name

SAVING = frozenset({"save_every", "save_best", "keep_last", "keep_every"})
"""Settings of what is written while a run trains; no number depends on them."""
MAY_CHANGE = (
    SAVING
    | {"steps", "threads", "optimizer.max_tokens", "optimizer.gradient_checkpointing"}
    | {"passes", "compile", "features", "features_gib", "vllm_memory"}
)
MAY_CHANGE_BELOW = ("guard.", "diagnose.", "track.")
"""None of these changes a step that is already done. More steps stretch the decay of the learning rate from here on; threads, the
budget of a pass, how rows are laid out in it and where hidden states wait change how sums are rounded, and nothing else.
"""


def changes(before: TrainConfig, now: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Field, written as in a file -> (value before, value now)."""
    old, new = _flat(before.model_dump()), _flat(now.model_dump())
    return {name: (old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}


def accepted_changes(before: TrainConfig, now: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """What differs, if all of it may; otherwise a refusal that names every field."""
    found = changes(before, now)
    refused = [
        f"{name} is {new!r} but the run was configured with {old!r}; leave it out, or start a run of its own"
        for name, (old, new) in found.items()
        if name not in MAY_CHANGE and not name.startswith(MAY_CHANGE_BELOW)
    ]
    if now.steps < before.steps:
        refused.append(f"steps is {now.steps} but the run was configured with {before.steps}; only more may be asked for")
    if refused:
        raise ConfigError("\n".join(refused))
    return found


def _flat(fields: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {above + name: value}
    return flat


PATHS_OF_TASKS = ("path", "held_out_path")


def anchored(config: TrainConfig, stored: TrainConfig | None = None) -> TrainConfig:
    """The model, unless it is a shipped base or what a run already has, and the files of the task.

    A run given as the model is taken for its best checkpoint of now: which one that is may change as it goes on.
    """
    model = config.model
    if stored is None or model != stored.model:
        model = pinned_name(model)
    found = {name: getattr(config.task, name, None) for name in PATHS_OF_TASKS}
    task = config.task.model_copy(update={name: str(Path(path).absolute()) for name, path in found.items() if _is_path(path, config)})
    return config.model_copy(update={"model": model, "task": task})


def _is_path(given: str | None, config: TrainConfig) -> TypeGuard[str]:
    """A task of one's own is a file, file.py:Name, or a module, which is found by its name."""
    return given is not None and (config.task.type != "own" or given.rpartition(":")[0].endswith(".py"))
