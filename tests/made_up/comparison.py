"""Rows of runs that nobody trained: curves that rise at a known speed, with noise that a seed shares between recipes."""

from collections.abc import Sequence
from random import Random
from typing import Any

from tokencredit.lab.compare.document import concluded

STEP, EVALUATIONS = 500, 16
SPEEDS = {"dapo": 1.0, "delta": 1.3, "ntf": 0.6, "random-lambda": 1.0}


def accuracy(speed: float, rollouts: float) -> float:
    return 0.95 - 0.7 * 0.5 ** (speed * rollouts / 2000)


def make_row(recipe: str, seed: int, *, base: str = "steps-shift", tuning: bool = False, **changes: Any) -> dict[str, Any]:
    shared, own = Random(f"{base}/{seed}"), Random(f"{base}/{seed}/{recipe}")
    luck, speed = shared.gauss(0, 0.02), SPEEDS.get(recipe, 1.0) * (1 + own.gauss(0, 0.02))
    curve = [[place * STEP, accuracy(speed, place * STEP) + luck] for place in range(EVALUATIONS + 1)]
    after = {"sampled": curve[-1][1], "greedy": 0.99, "pass_at_k": 0.97, "k": 8, "length": 20.0, "problems": 512}
    row = {
        "recipe": recipe, "base": base, "rate": 3e-4, "seed": seed, "tuning": tuning, "folder": f"runs/{base}/{recipe}/{seed}",
        "commit": "c0ffee", "uncommitted": None, "versions": {"python": "3.11"}, "held_out_sha256": "held",
        "first_prompts_sha256": f"first-{base}-{seed}", "before": {**after, "sampled": curve[0][1]}, "after": after,
        "rollouts": EVALUATIONS * STEP, "curve": curve, "entropy": 0.2 + own.gauss(0, 0.01), "best_step": 80, "seconds": 40.0,
    }  # fmt: skip
    return row | changes


def make_comparison(
    recipes: Sequence[str] = tuple(SPEEDS), bases: tuple[str, ...] = ("steps-shift",), seeds: int = 5, **changes: Any
) -> Any:
    """As the JSON of `tokencredit compare` has it."""
    rows = [make_row(recipe, seed, base=base) for base in bases for recipe in recipes for seed in range(seeds)]
    told: dict[str, Any] = {
        "kind": "tokencredit comparison", "command": "tokencredit compare --recipes dapo,delta", "commit": "c0ffee",
        "uncommitted": None, "python": "3.11", "platform": "made up", "packages": {"torch": "2.13"},
        "design": {
            "recipes": list(recipes), "controls": [name for name in recipes if name == "random-lambda"], "reference": recipes[0],
            "bases": {base: base for base in bases}, "seeds": list(range(seeds)), "rates": [3e-4, 8e-4], "tuning_seeds": [10_000],
            "threshold": 0.8,
        },
        "settings": {"common": {"steps": 80}, "by_recipe": {name: {"recipe": name} for name in recipes}},
        "remarks": [], "missing": 0, "failed": [],
        "tuning": [
            {"recipe": name, "base": base, "best": 3e-4, "at_edge": True,
             "areas": [{"rate": 3e-4, "area": 0.7}, {"rate": 8e-4, "area": None}]}
            for base in bases for name in recipes
        ],
        "runs": rows,
    }  # fmt: skip
    return concluded(told | changes)
