"""Every method and recipe with the properties that the rest of the package derives. Record it with: python tests/surface/methods.py

The names, their order and every reason are public: a change is recorded by this command and read in the diff.
"""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

STORED = Path(__file__).with_name("methods.json")


@cache
def stored() -> dict[str, dict[str, Any]]:
    return json.loads(STORED.read_text())


def runs_by(place: str) -> list[str]:
    """Recipes that nothing speaks against."""
    return [name for name, found in stored()["recipes"].items() if found[place] is None]


def refused_by(place: str) -> dict[str, str]:
    return {name: found[place] for name, found in stored()["recipes"].items() if found[place] is not None}


def sampling() -> dict[str, str]:
    """Recipes that sample more than rollouts -> what for."""
    return {name: found["samples"] for name, found in stored()["recipes"].items() if found["samples"] is not None}


def measured() -> dict[str, dict[str, Any]]:
    from tokencredit.analysis.offline import why_a_model
    from tokencredit.config.recipes import RECIPES
    from tokencredit.config.resolve import resolve
    from tokencredit.config.train import METHODS
    from tokencredit.integrations.support import refuse_recipe, unsupported_by_functions_reason, unsupported_by_trainer_reason
    from tokencredit.pipeline.build import sampled_evidence, why_needed

    def refusal(call: Callable[[], object]) -> str | None:
        try:
            call()
        except ValueError as problem:
            return str(problem)
        return None

    recipes = {}
    for name, entry in RECIPES.items():
        recipe, config = entry.recipe, resolve([{"recipe": name}])
        needs = why_needed(recipe)
        sampled = sorted(sampled_evidence(recipe))
        recipes[name] = {
            "credit": recipe.credit.type,
            "needs": sorted(needs),
            "samples": needs[sampled[0]] if sampled else None,
            "group of one": config.needs_siblings(),
            "without a model": why_a_model(config),
            "TRL": refusal(lambda recipe=recipe: refuse_recipe(recipe)),
            "verl, trainer mode": unsupported_by_trainer_reason(recipe),
            "verl, by name": unsupported_by_functions_reason(recipe),
        }
    methods = {stage: {name: dict(choice.needs) for name, choice in choices.items()} for stage, choices in METHODS.items()}
    return {"methods": methods, "recipes": recipes}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    STORED.write_text(json.dumps(measured(), indent=1, ensure_ascii=False) + "\n")
