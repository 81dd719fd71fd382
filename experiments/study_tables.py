"""Tables of the recipe study: everything that was tuned, and those that went on.

python experiments/study_tables.py tuned experiments/2026-11-17-recipe-study/comparison.json
python experiments/study_tables.py finals experiments/2026-11-17-recipe-study/{comparison,fresh-shift,fresh-sharpen}.json

Curve areas in percent; "at the best rates" is over the rollouts that all of them cover, as the finalists were chosen. In `finals` a cell
is the paired difference to the reference with its 95 % interval, bold beyond the limit that allows for the number of recipes; the last
three columns are means of the bases.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from statistics import mean
from typing import Any

from goal_table import load, markdown, points, short


def tuned(study: dict[str, Any]) -> str:
    bases = list(study["design"]["bases"])
    rates = study["design"]["rates"]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for one in study["tuning"]:
        found.setdefault(one["recipe"], {})[one["base"]] = one
    standings = {one["recipe"]: one for one in study["standings"]}

    def cells(recipe: str, base: str) -> list[str]:
        areas = {rate["rate"]: rate["area"] for rate in found[recipe][base]["areas"]}
        return ["–" if areas[rate] is None else f"{100 * areas[rate]:.1f}" for rate in rates]

    head = ["recipe", *(f"{base}, {rate:g}" for base in bases for rate in rates), "at the best rates", "goes on"]
    rows = []
    for recipe, standing in standings.items():
        numbers = [cell for base in bases for cell in cells(recipe, base)]
        rows.append([short(recipe), *numbers, f"{100 * standing['area']:.1f}", "yes" if standing["goes_on"] else ""])
    return markdown(head, rows)


def finals(studies: Sequence[tuple[str, dict[str, Any]]]) -> str:
    places = [(name, base, study) for name, study in studies for base in study["summary"]["horizons"]]
    seen = Counter(base for _, base, _ in places)
    columns = [(base if seen[base] == 1 else f"{base} ({name})", base, study) for name, base, study in places]
    own: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}
    for title, base, study in columns:
        apart = {one["recipe"]: one for one in study["summary"]["comparisons"]}
        for row in study["summary"]["recipes"]:
            if row["base"] != base:
                continue
            compared = apart.get(row["recipe"])
            cell = f"{100 * row['area']['mean']:.1f}" if compared is None else told(compared["by_base"][base]["area"])
            own.setdefault(short(row["recipe"]), {})[title] = (cell, row)
    order = sorted(own, key=lambda recipe: -mean(row["area"]["mean"] for _, row in own[recipe].values()))
    head = ["recipe", *(title for title, _, _ in columns), "final", "pass@8", "end entropy"]
    rows = []
    for recipe in order:
        measured = [row for _, row in own[recipe].values()]
        ends = [mean(row[name]["mean"] for row in measured) for name in ("final", "pass_at_k", "entropy")]
        cells = [own[recipe].get(title, ("–", {}))[0] for title, _, _ in columns]
        rows.append([recipe, *cells, f"{100 * ends[0]:.1f}", f"{100 * ends[1]:.1f}", f"{ends[2]:.3f}"])
    return markdown(head, rows)


def told(area: dict[str, Any]) -> str:
    certain = area["t"] is not None and area["bonferroni_t"] is not None and abs(area["t"]) > area["bonferroni_t"]
    return f"**{points(area)}**" if certain else points(area)


def main() -> None:
    match sys.argv[1:]:
        case ["tuned", path]:
            print(tuned(load(path)[1]))
        case ["finals", *paths] if paths:
            print(finals([load(path) for path in paths]))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
