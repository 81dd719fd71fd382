"""Per task: the model, lengths, batch and optimizer that suit it. Recipes fix stages, presets the rest."""

from typing import Any

TASK_PRESETS: dict[str, dict[str, Any]] = {
    "steps": {"model": "steps-shift"},
    "cotadd": {
        "model": "cotadd",
        "steps": 100,
        "sampling": {"max_new_tokens": 20},
    },
}

REVISION_PRESETS: dict[str, dict[str, Any]] = {"steps": {"model": "steps-revise"}}
"""Per task: what a recipe needs that asks the policy for revisions. The base was warm-started on some, or it could not attempt any."""
