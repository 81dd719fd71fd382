"""How often the intervals of `tokencredit compare` hold a difference that is known, beside plain percentiles: by drawing comparisons.

python experiments/interval_coverage.py --tries 2000 --out experiments/2026-11-16-intervals/results.json
"""

import argparse
import json
from pathlib import Path

import numpy as np

from tokencredit.lab.compare.statistics import Bounds, Numbers, cut, paired, points, resamples
from tokencredit.storage.run_dir import describe_environment

SIZES = ((3,), (5,), (8,), (4, 4), (8, 8), (16,))
"""Seeds on each base."""
TRUTH = 1.0
SHAPES = {"normal": lambda rng, size: rng.normal(TRUTH, 1.0, size), "skewed": lambda rng, size: rng.exponential(TRUTH, size)}


def plain(strata: list[Numbers], sizes: tuple[int, ...]) -> Bounds:
    means = [stratum @ count.T / len(stratum) for stratum, count in zip(strata, resamples(sizes), strict=True)]
    return cut(np.mean(means, axis=0), 0.025)


def coverage(sizes: tuple[int, ...], shape: str, tries: int) -> dict[str, float]:
    rng, held = np.random.default_rng(0), dict.fromkeys(("percentiles", "bootstrap", "t", "shown"), 0)
    for _ in range(tries):
        strata = [SHAPES[shape](rng, size) for size in sizes]
        found = paired([points(stratum.tolist()) for stratum in strata])
        assert found is not None
        intervals = found.intervals
        for name, one in zip(held, (plain(strata, sizes), intervals.bootstrap, intervals.t, intervals.shown), strict=True):
            held[name] += one.low <= TRUTH <= one.high
    return {name: count / tries for name, count in held.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [
        {"seeds": list(sizes), "differences": shape, "tries": options.tries, **coverage(sizes, shape, options.tries)}
        for shape in SHAPES
        for sizes in SIZES
    ]
    for row in rows:
        print(f"{row['differences']:<7} {'+'.join(map(str, row['seeds'])):<4}", *(f"{name} {row[name]:.3f}" for name in list(row)[3:]))
    if options.out is not None:
        options.out.write_text(json.dumps({"commit": describe_environment()["commit"], "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
