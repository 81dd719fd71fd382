r"""The finalists of a study on a base that played no part in it, each at the rate that it was tuned to on the study's base of that kind.

python scripts/make_bases.py steps-shift steps-sharpen --seed 8 --out runs/bases-8
python experiments/finals_elsewhere.py runs/recipe-study/comparison.json --kind steps-shift \
    --models runs/bases-8/steps-shift --jobs 2 --out runs/fresh-shift

Flags of `tokencredit compare` and `train` may follow and go on top. Seeds are others than the study's.
"""

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


def flags_of(study: dict[str, Any], kind: str) -> dict[str, str]:
    given = rates(study, kind)
    if not given:
        sys.exit(f"--kind {kind}: the study tuned nothing on such a base; it has {', '.join(study['design']['bases'])}")
    reference = study["design"]["reference"]
    return {
        "--recipes": ",".join(at_rate(recipe, given[recipe]) for recipe in finalists(study)),
        "--reference": at_rate(reference, given[reference]),
        "--seeds": "8",
        "--first-seed": FIRST_SEED,
        **SAME_FOR_ALL,
    }


def main() -> None:
    if len(sys.argv) < 4 or sys.argv[2] != "--kind":
        sys.exit("usage: finals_elsewhere.py COMPARISON.json --kind BASE [flags of `tokencredit compare`]")
    study = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    flags = [word for pair in flags_of(study, sys.argv[3]).items() for word in pair]
    sys.exit(subprocess.run([sys.executable, "-m", "tokencredit", "compare", *flags, *sys.argv[4:]], check=False).returncode)


if __name__ == "__main__":
    main()
