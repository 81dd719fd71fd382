"""One row to a recipe of each comparison: does it end where the reference does, with how many rollouts, at what cost in pass@k and entropy?

python experiments/goal_table.py experiments/2026-11-17-right-once/*-bases-*.json experiments/2026-11-17-language-model-recipes/sums.json
"""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def load(path: str) -> tuple[str, dict[str, Any]]:
    """What a comparison is called, and what it says."""
    return Path(path).stem, json.loads(Path(path).read_text(encoding="utf-8"))


def head(told: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    tries = {own["k"] for one in told for own in one["summary"]["recipes"]}
    best_of = f"pass@{tries.pop() if len(tries) == 1 else 'k'}, difference"
    return (
        "from",
        "recipe (rate)",
        "seeds",
        "rollouts",
        "final",
        "difference",
        best_of,
        "end entropy, difference",
        "rollouts to its final",
    )


def points(measure: dict[str, Any]) -> str:
    """A difference of shares, in points."""
    low, high = measure["interval"] or (math.nan, math.nan)
    return f"{100 * measure['low']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def plain(measure: dict[str, Any]) -> str:
    low, high = measure["interval"] or (math.nan, math.nan)
    return f"{measure['low']:+.3f} [{low:+.3f}, {high:+.3f}]"


def factor(measure: dict[str, Any] | None) -> str:
    """As a ratio, from its logarithm; an end that is not known is open."""

    def shown(value: float | None) -> str:
        return "∞" if value is None or not math.isfinite(value) else f"{math.exp(value):.2f}"

    if measure is None:
        return "–"
    low, high = measure["interval"] or (None, None)
    least = "" if measure["high"] == measure["low"] else "at least "
    return f"{least}x{shown(measure['low'])} [{shown(low)}, {shown(high)}]"


def short(recipe: str) -> str:
    """Without the rate, which has a column of its own."""
    name, _, settings = recipe.partition(":")
    kept = [one for one in settings.split("+") if one and not one.startswith("optimizer.learning_rate")]
    return (name + (f": {', '.join(kept)}" if kept else "")).replace("sampling.prompts=256, sampling.group_size=1", "256 x 1")


def rows(source: str, told: dict[str, Any]) -> list[tuple[str, ...]]:
    found, reference = [], told["design"]["reference"]
    differences = {one["recipe"]: one["overall"] for one in told["summary"]["comparisons"]}
    for own in told["summary"]["recipes"]:
        name, apart = own["recipe"], differences.get(own["recipe"])
        cells = [source, f"{short(name)} ({own['rates'][0]:g})", str(own["runs"]), f"{own['rollouts']['mean']:,.0f}"]
        cells.append(f"{100 * own['final']['mean']:.1f} ± {100 * own['final']['sd']:.1f}")
        if name == reference or apart is None:
            cells += ["", f"{100 * own['pass_at_k']['mean']:.1f}", f"{own['entropy']['mean']:.3f}", "1"]
        else:
            cells += [points(apart["final"]), points(apart["pass_at_k"]), plain(apart["entropy"]), factor(apart["to_final"])]
        found.append(tuple(cells))
    return found


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    told = [load(path) for path in sys.argv[1:]]
    print(markdown(head([one for _, one in told]), [row for source, one in told for row in rows(source, one)]))


if __name__ == "__main__":
    main()
