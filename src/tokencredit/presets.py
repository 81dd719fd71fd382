"""Per task: the model, lengths, batch and optimizer that suit it. Recipes fix stages, presets the rest."""

from typing import Any

TASK_PRESETS: dict[str, dict[str, Any]] = {
    "steps": {"model": "steps-shift"},
    "cotadd": {
        "model": "cotadd",
        "steps": 80,
        "sampling": {"max_new_tokens": 20},
    },
}
