"""Per task: the model, lengths, batch and optimizer that suit it. Recipes fix stages, presets the rest."""

from typing import Any

TASK_PRESETS: dict[str, dict[str, Any]] = {
    "steps": {"model": "steps-shift"},
    "cotadd": {
        "model": "cotadd",
        "steps": 100,
        "sampling": {"max_new_tokens": 20},
    },
    "jsonl": {
        "sampling": {"max_new_tokens": 512},
        "optimizer": {"learning_rate": 1e-6, "max_tokens": 16384},
    },
    "code": {
        "sampling": {"max_new_tokens": 512},
        "optimizer": {"learning_rate": 1e-6, "max_tokens": 16384},
    },
}

ENGINE_PRESETS: dict[str, dict[str, Any]] = {"trl": {"diagnose": {"every": 0}}}
"""Per engine: defaults that it cannot honour, so that only what somebody asked for is refused."""

REVISION_PRESETS: dict[str, dict[str, Any]] = {"steps": {"model": "steps-revise"}}
"""Per task: what a recipe needs that asks the policy for revisions. The base was warm-started on some, or it could not attempt any."""
