"""Default settings per task, engine and kind of weights. A recipe sets the methods; presets set the rest."""

from typing import Any

TASK_PRESETS: dict[str, dict[str, Any]] = {
    "steps": {"model": "steps-shift"},
    "cotadd": {
        "model": "cotadd",
        "steps": 100,
        "sampling": {"max_new_tokens": 20},
    },
    "guess": {
        "model": "guess",
        "steps": 100,
        "sampling": {"max_new_tokens": 16},
        "optimizer": {"learning_rate": 1e-3},
        "evaluation": {"every": 10, "problems": 128, "final_samples": 4},
    },
    "arithmetic": {
        "model": "smollm2",
        "prompt": {"style": "plain", "few_shot": 3},
        "steps": 16,
        "sampling": {"prompts": 12, "group_size": 16, "max_new_tokens": 8, "stop": ["\n"]},
        "optimizer": {"learning_rate": 2e-5, "steps_per_batch": 1},
        "evaluation": {"every": 4, "problems": 64, "final_problems": 128, "final_samples": 4},
        "diagnose": {"every": 0},
        "save_every": 0,
    },
    "countdown": {
        "sampling": {"max_new_tokens": 48},
        "optimizer": {"learning_rate": 2e-5},
        "diagnose": {"every": 0},
    },
    "reasoning-gym": {
        "sampling": {"max_new_tokens": 64},
        "optimizer": {"learning_rate": 2e-5},
        "diagnose": {"every": 0},
    },
    "own": {
        "sampling": {"max_new_tokens": 256},
        "optimizer": {"learning_rate": 1e-6, "max_tokens": 16384},
        "diagnose": {"every": 0},
    },
    "jsonl": {
        "sampling": {"max_new_tokens": 512},
        "optimizer": {"learning_rate": 1e-6, "max_tokens": 16384},
        "diagnose": {"every": 0},
    },
    "code": {
        "sampling": {"max_new_tokens": 512},
        "optimizer": {"learning_rate": 1e-6, "max_tokens": 16384},
        "diagnose": {"every": 0},
    },
}

ENGINE_PRESETS: dict[str, dict[str, Any]] = {"trl": {"diagnose": {"every": 0}, "sampling": {"stop": []}}}
"""Engine -> replacements for defaults that it does not support, so that it refuses only settings that the user chose."""

WEIGHTS_PRESETS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16", "diagnose": {"every": 0}},
    "bfloat16-stochastic": {"dtype": "bfloat16", "diagnose": {"every": 0}},
}
"""Kind of weights -> the same."""

REVISION_PRESETS: dict[str, dict[str, Any]] = {"steps": {"model": "steps-revise"}}
"""Task -> settings for recipes that sample revisions. This base model was warm-started on some revisions; another could not attempt any."""
