"""What runs share, and where they do not: the problems they are measured on, the prompts they are trained on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokencredit.lab.compare.results import Row

MOST_NAMED = 4


def sharing_notes(rows: Sequence[Row], *, recipes: Sequence[str], reference: str, settings: Mapping[str, Any]) -> list[str]:
    """`rows`: reported runs; `settings`: those in common and those of each recipe, as the JSON has them."""

    def setting(recipe: str, name: str) -> Any:
        return settings["by_recipe"].get(recipe, {}).get(name, settings["common"].get(name))

    return [*_held_out(rows), *_first_prompts(rows, reference, setting), *_drawn_otherwise(recipes, reference, setting)]


def _held_out(rows: Sequence[Row]) -> list[str]:
    by_place: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        by_place.setdefault((row["base"], row["seed"]), set()).add(row["held_out_sha256"])
    if unlike := [f"{base} seed {seed}" for (base, seed), hashes in by_place.items() if len(hashes) > 1]:
        return [f"Held-out problems differ between the recipes of {_few(unlike)}: these are no pairs."]
    if len({row["held_out_sha256"] for row in rows}) > 1:
        return ["Each seed was measured on held-out problems of its own: pairs share them, but seeds differ by their problems too."]
    return []


def _first_prompts(rows: Sequence[Row], reference: str, setting: Callable[[str, str], Any]) -> list[str]:
    theirs = {(row["base"], row["seed"]): row["first_prompts_sha256"] for row in rows if row["recipe"] == reference}
    unlike: dict[str, list[str]] = {}
    for row in rows:
        if row["first_prompts_sha256"] != theirs.get((row["base"], row["seed"]), row["first_prompts_sha256"]):
            unlike.setdefault(row["recipe"], []).append(f"{row['base']} seed {row['seed']}")
    theirs_a_step = setting(reference, "sampling.prompts")
    otherwise: dict[int, list[str]] = {}
    found = []
    for recipe, places in unlike.items():
        if (own := setting(recipe, "sampling.prompts")) != theirs_a_step:
            otherwise.setdefault(own, []).append(recipe)
        else:
            found.append(f"{recipe} was first asked other prompts than {reference} on {_few(places)}: these are no pairs.")
    for prompts, drawing in otherwise.items():
        found.append(
            f"With {prompts} prompts a step, where {reference} draws {theirs_a_step}, pairs do not share training prompts: {_few(drawing)}."
        )
    return found


def _drawn_otherwise(recipes: Sequence[str], reference: str, setting: Callable[[str, str], Any]) -> list[str]:
    found = []
    if replacing := [recipe for recipe in recipes if setting(recipe, "filter_groups")]:
        found.append(
            f"Groups whose scores are all alike are thrown away (filter_groups, {_few(replacing)}): what is asked instead is not shared."
        )

    def differs(recipe: str, name: str) -> bool:
        return setting(recipe, name) != setting(reference, name)

    # Where prompts differ too, that has been told.
    if other := [recipe for recipe in recipes if differs(recipe, "sampling.group_size") and not differs(recipe, "sampling.prompts")]:
        found.append(f"Groups are of another size than {reference}'s ({_few(other)}): prompts are shared, the draws of responses are not.")
    return found


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
