r"""Whether a recipe ends where dapo does with seven tenths of its rollouts, its learning rate decayed by then.

python scripts/make_bases.py steps-shift steps-sharpen --seed 8 --out runs/bases-8
python experiments/fewer_rollouts.py --kind steps-shift --other runs/bases-8/steps-shift --jobs 2 --out runs/fewer-shift
python experiments/fewer_rollouts.py --kind steps-sharpen --other runs/bases-8/steps-sharpen --jobs 2 --out runs/fewer-sharpen

Each recipe's rate is the one with the best final accuracy on the shipped base of the kind (`tuning/`); what is reported are other seeds on
the other base (`test/`). Only there dapo is run for as few steps, too. Flags of `tokencredit compare` and `train` may follow.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from finals_elsewhere import at_rate
from recipe_study import ONE, SAME_FOR_ALL

FEWER = 28
CANDIDATES = (
    f"c-rf:steps={FEWER}+{ONE}",
    f"c-rf:steps={FEWER}+credit.type=ntf-keep+{ONE}",
    f"c-rf:steps={FEWER}+credit.type=one-sided+{ONE}",
)
DAPO, SHORT_DAPO = "dapo", f"dapo:steps={FEWER}"
RATES = (7e-4, 1e-3, 1.4e-3)
SEEDS = {"tuning": (300, 2), "test": (400, 8)}


def compare(part: str, recipes: Sequence[str], reference: str, base: str, out: Path, rest: Sequence[str]) -> dict[str, Any]:
    first, seeds = SEEDS[part]
    asked = {
        "--recipes": ",".join(recipes),
        "--reference": reference,
        "--models": base,
        "--first-seed": str(first),
        "--seeds": str(seeds),
        **SAME_FOR_ALL,
        "--out": str(out / part),
    }
    flags = [word for pair in asked.items() for word in pair]
    done = subprocess.run([sys.executable, "-m", "tokencredit", "compare", *flags, *rest], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads((out / part / "comparison.json").read_text(encoding="utf-8"))


def best_rates(told: Mapping[str, Any]) -> dict[str, float]:
    """By the mean final accuracy, since that is what is to be reached."""
    finals = {
        (recipe, rate): mean(row["after"]["sampled"] for row in told["runs"] if row["recipe"] == at_rate(recipe, rate))
        for recipe in (DAPO, *CANDIDATES)
        for rate in RATES
    }
    return {recipe: max(RATES, key=lambda rate: finals[recipe, rate]) for recipe in (DAPO, *CANDIDATES)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", required=True, metavar="BASE", help="shipped base that rates are tuned on")
    parser.add_argument("--other", required=True, metavar="BASE", help="base that is reported")
    parser.add_argument("--out", required=True, type=Path)
    options, rest = parser.parse_known_args()
    tried = [at_rate(recipe, rate) for recipe in (DAPO, *CANDIDATES) for rate in RATES]
    rates = best_rates(compare("tuning", tried, at_rate(DAPO, RATES[0]), options.kind, options.out, rest))
    reported = [at_rate(recipe, rates[recipe]) for recipe in (DAPO, *CANDIDATES)]
    compare("test", [*reported, at_rate(SHORT_DAPO, rates[DAPO])], reported[0], options.other, options.out, rest)


if __name__ == "__main__":
    main()
