r"""Whether a recipe ends where dapo does with seven tenths of its rollouts, its learning rate decayed by then.

python scripts/make_bases.py steps-shift steps-sharpen --seed 8 --out runs/bases-8
python experiments/fewer_rollouts.py --kind steps-shift --other runs/bases-8/steps-shift --jobs 2 --out runs/fewer-shift
python experiments/fewer_rollouts.py --kind steps-sharpen --other runs/bases-8/steps-sharpen --jobs 2 --out runs/fewer-sharpen

Rates are chosen on the shipped base of the kind (`tuning/`); what is reported are other seeds on the other base (`test/`). A reference has
the rate with the best final accuracy. So has a candidate with --choose final; with --choose entropy only those of its rates count that
end with no less entropy than the best reference does. Flags of `tokencredit compare` and `train` may follow.
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
FIRST_SEEDS = {"tuning": 300, "test": 400}


def compare(part: str, recipes: Sequence[str], base: str, options: argparse.Namespace, rest: Sequence[str]) -> dict[str, Any]:
    out = options.out / part
    asked = {
        "--recipes": ",".join(recipes),
        "--reference": recipes[0],
        "--models": base,
        "--first-seed": str(FIRST_SEEDS[part]),
        "--seeds": str(options.tune_seeds if part == "tuning" else options.seeds),
        **SAME_FOR_ALL,
        "--out": str(out),
    }
    flags = [word for pair in asked.items() for word in pair]
    done = subprocess.run([sys.executable, "-m", "tokencredit", "compare", *flags, *rest], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads((out / "comparison.json").read_text(encoding="utf-8"))


def ends(told: Mapping[str, Any], recipe: str, rate: float) -> tuple[float, float]:
    """Mean final accuracy and entropy."""
    own = [row for row in told["runs"] if row["recipe"] == at_rate(recipe, rate)]
    return mean(row["after"]["sampled"] for row in own), mean(row["entropy"] for row in own)


def best_rates(
    told: Mapping[str, Any], references: Sequence[str], candidates: Sequence[str], rates: Sequence[float], by: str
) -> dict[str, float]:
    found = {(recipe, rate): ends(told, recipe, rate) for recipe in (*references, *candidates) for rate in rates}
    best = {recipe: max(rates, key=lambda rate: found[recipe, rate][0]) for recipe in (*references, *candidates)}
    if by == "entropy":
        leader = max(references, key=lambda recipe: found[recipe, best[recipe]][0])
        asked = found[leader, best[leader]][1]
        for recipe in candidates:
            enough = [rate for rate in rates if found[recipe, rate][1] >= asked]
            best[recipe] = max(enough, key=lambda rate: found[recipe, rate][0]) if enough else best[recipe]
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", required=True, metavar="BASE", help="shipped base that rates are tuned on")
    parser.add_argument("--other", required=True, metavar="BASE", help="base that is reported")
    parser.add_argument("--references", default="dapo", help="with commas between them; the first is what others are compared with")
    parser.add_argument("--candidates", default=",".join(CANDIDATES), help="with commas between them")
    parser.add_argument("--rates", default="7e-4,1e-3,1.4e-3")
    parser.add_argument("--choose", choices=("final", "entropy"), default="final", help="how a candidate's rate is chosen")
    parser.add_argument("--tuned", type=Path, metavar="COMPARISON.json", help="tuning that was done before, instead of another")
    parser.add_argument("--tune-seeds", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", required=True, type=Path)
    options, rest = parser.parse_known_args()
    references, candidates = options.references.split(","), options.candidates.split(",")
    rates = [float(rate) for rate in options.rates.split(",")]
    tried = [at_rate(recipe, rate) for recipe in (*references, *candidates) for rate in rates]
    told = (
        compare("tuning", tried, options.kind, options, rest)
        if options.tuned is None
        else json.loads(options.tuned.read_text(encoding="utf-8"))
    )
    best = best_rates(told, references, candidates, rates, options.choose)
    reported = [at_rate(recipe, best[recipe]) for recipe in (*references, *candidates)]
    short = at_rate(f"{references[0]}:steps={FEWER}", best[references[0]])
    compare("test", [*reported, short], options.other, options, rest)


if __name__ == "__main__":
    main()
