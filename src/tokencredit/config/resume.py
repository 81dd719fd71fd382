"""Which settings may change when a run resumes. All others are refused by name."""

from collections.abc import Mapping
from typing import Any

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError

SAVING = frozenset({"save_every", "save_best", "keep_last", "keep_every"})
"""Settings of what a run saves; no result depends on them."""
MAY_CHANGE = (
    SAVING
    | {"steps", "threads", "optimizer.max_tokens", "optimizer.gradient_checkpointing"}
    | {"passes", "compile", "features", "features_gib", "vllm_memory"}
)
MAY_CHANGE_BELOW = ("guard.", "diagnose.", "track.")
"""None of these changes a step that is already done. More steps stretch the remaining decay of the learning rate. Threads, the token
budget of a pass, its layout and the storage of hidden states change only how sums are rounded.
"""


def changes(before: TrainConfig, now: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Field, written as in a file -> (value before, value now)."""
    old, new = _flat(before.model_dump()), _flat(now.model_dump())
    return {name: (old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}


def accepted_changes(before: TrainConfig, now: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """The changed fields if all of them may change; otherwise a refusal that names each one."""
    found = changes(before, now)
    refused = [
        f"{name} is {new!r} but the run was configured with {old!r}; leave it out, or start a run of its own"
        for name, (old, new) in found.items()
        if name not in MAY_CHANGE and not name.startswith(MAY_CHANGE_BELOW)
    ]
    if now.steps < before.steps:
        refused.append(f"steps is {now.steps} but the run was configured with {before.steps}; it can only increase")
    if refused:
        raise ConfigError("\n".join(refused))
    return found


def _flat(fields: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {above + name: value}
    return flat


PATHS_OF_TASKS = ("path", "held_out_path")
