r"""The finalists of a study elsewhere: on a base or a task that played no part in it.

python scripts/make_bases.py steps-shift steps-sharpen --seed 8 --out runs/bases-8
python experiments/finals_elsewhere.py runs/recipe-study/comparison.json --kind steps-shift \
    --models runs/bases-8/steps-shift --jobs 2 --out runs/fresh-shift
python experiments/finals_elsewhere.py runs/recipe-study/comparison.json --task cotadd --jobs 2 --out runs/cotadd

With --kind each has the rate that it was tuned to on the study's base of that name, without it rates are tuned again. Flags of
`tokencredit compare` and `train` may follow and go on top. Seeds are others than the study's.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from recipe_study import SAME_FOR_ALL

FIRST_SEED = "100"


def finalists(study: dict[str, Any]) -> list[str]:
    return [one["recipe"] for one in study["standings"] if one["goes_on"]]


def rates(study: dict[str, Any], kind: str) -> dict[str, float]:
    return {one["recipe"]: one["best"] for one in study["tuning"] if one["base"] == kind and one["best"] is not None}


def at_rate(recipe: str, rate: float) -> str:
    return f"{recipe}{'+' if ':' in recipe else ':'}optimizer.learning_rate={rate:g}"


def flags_of(study: dict[str, Any], kind: str | None) -> dict[str, str]:
    common = {"--seeds": "8", "--first-seed": FIRST_SEED, **SAME_FOR_ALL}
    recipes, reference = finalists(study), study["design"]["reference"]
    if kind is None:
        return {"--recipes": ",".join(recipes), "--reference": reference, "--rates": "5e-4,1e-3", **common}
    given = rates(study, kind)
    if not given:
        sys.exit(f"--kind {kind}: the study tuned nothing on such a base; it has {', '.join(study['design']['bases'])}")
    told = ",".join(at_rate(recipe, given[recipe]) for recipe in recipes)
    return {"--recipes": told, "--reference": at_rate(reference, given[reference]), **common}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, metavar="COMPARISON.json")
    parser.add_argument("--kind", metavar="BASE", help="the study's base whose rates are taken")
    options, rest = parser.parse_known_args()
    study = json.loads(options.study.read_text(encoding="utf-8"))
    flags = [word for pair in flags_of(study, options.kind).items() for word in pair]
    sys.exit(subprocess.run([sys.executable, "-m", "tokencredit", "compare", *flags, *rest], check=False).returncode)


if __name__ == "__main__":
    main()
