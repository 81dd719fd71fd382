"""A comparison in the terminal, from its JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tokencredit.lab.compare.pairs import TABLE_MEASURES
from tokencredit.lab.pages import effects
from tokencredit.text import brief, sanitize


def print_comparison(document: dict[str, Any]) -> None:
    """Print the tables and caveats of a stored comparison."""
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=220)
    for title, headings, rows in comparison_tables(document):
        _print(console, title, headings, rows)
    for note in document["notes"]:
        console.print(f"- {brief(note, 1000)}", markup=False, soft_wrap=True)


def comparison_tables(document: dict[str, Any]) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    """Title, headings and rows of every table."""
    summary, bases = document["summary"], document["design"]["bases"]
    for base in bases:
        own = [one for one in summary["recipes"] if one["base"] == base]
        if own:
            yield (f"{base}: mean ± standard deviation over seeds, accuracies in %", *_per_recipe(own, summary["threshold"]))
    compared = [one for one in summary["comparisons"] if one["pairs"]]
    places = [("", "overall"), *((base, base) for base in bases if len(bases) > 1)]
    for title, place in places:
        rows = [(one, one["overall"] if place == "overall" else one["by_base"].get(place)) for one in compared]
        rows = [(one, found) for one, found in rows if found is not None]
        if rows:
            over = f"{title}: " if title else ""
            name = (
                f"{over}paired differences to {summary['reference']} with 95 % intervals: accuracies in points, rollouts as a factor; "
                "seeds per base to detect a gain of 10 % / the measured gain"
            )
            yield (name, *_against_reference(rows, summary["measures"]))
    if tuned := document["tuning"]:
        yield ("learning rates, mean curve area in % over tuning seeds", *_rates(tuned, document["design"]["rates"]))
    if standing := document["standings"]:
        yield ("recipes that advanced: mean curve area in % at the best rates over tuning seeds and bases", *_standings(standing))


Lines = tuple[Sequence[str], Sequence[Sequence[str]]]


def _name(one: dict[str, Any]) -> str:
    return sanitize(one["recipe"]) + (" (A/A control)" if one["control"] else "")


def _per_recipe(own: Sequence[dict[str, Any]], threshold: float) -> Lines:
    headings = (
        "recipe",
        "rate",
        "runs",
        "area",
        "final",
        "greedy",
        f"pass@{own[0]['k']}",
        "entropy",
        "tokens",
        "rollouts",
        f"to {100 * threshold:g} %",
    )
    rows = [
        (
            _name(one),
            ", ".join(f"{rate:g}" for rate in one["rates"]),
            str(one["runs"]),
            *(effects.mean_and_spread(one[name], percent=True) for name in ("area", "final", "greedy", "pass_at_k")),
            effects.mean_and_spread(one["entropy"], digits=3),
            effects.mean_and_spread(one["length"]["after"]),
            effects.mean_and_spread(one["rollouts"], digits=0) if one["rollouts"]["sd"] else f"{one['rollouts']['mean']:,.0f}",
            effects.to_threshold(one["to_threshold"], one["runs"]),
        )
        for one in own
    ]
    return headings, rows


def _against_reference(rows: Sequence[tuple[dict[str, Any], dict[str, Any]]], measures: dict[str, Any]) -> Lines:
    others = [name for name in TABLE_MEASURES if name != "area"]
    seeds = ("seeds, area", "seeds, rollouts")
    headings = ("recipe", "pairs", "area", "t", "P(better)", *(measures[name]["title"] for name in others), *seeds)
    lines = [
        (
            _name(one),
            str(found["area"]["pairs"]),
            effects.effect(measures["area"], found["area"]),
            effects.t_value(found["area"]),
            effects.improvement(found["area"]["improvement"]),
            *(effects.effect(measures[name], found[name]) for name in others),
            *(effects.seeds(found[name]["seeds_needed"]) for name in ("area", "to_threshold")),
        )
        for one, found in rows
    ]
    return headings, lines


def _rates(tuned: Sequence[dict[str, Any]], rates: Sequence[float]) -> Lines:
    headings = ("recipe", "base", *(f"{rate:g}" for rate in rates), "best")
    rows = []
    for one in tuned:
        areas = {found["rate"]: found["area"] for found in one["areas"]}
        best = "–" if one["best"] is None else f"{one['best']:g}" + (" (edge)" if one["at_edge"] else "")
        rows.append((sanitize(one["recipe"]), sanitize(one["base"]), *(effects.share(areas[rate]) for rate in rates), best))
    return headings, rows


def _standings(standing: Sequence[dict[str, Any]]) -> Lines:
    rows = [(sanitize(one["recipe"]), effects.share(one["area"]), "yes" if one["goes_on"] else "") for one in standing]
    return ("recipe", "area", "advanced"), rows


def _print(console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    frame = box.HEAVY_HEAD if console.is_terminal else None
    table = Table(title=sanitize(title), title_justify="left", box=frame, pad_edge=console.is_terminal)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
