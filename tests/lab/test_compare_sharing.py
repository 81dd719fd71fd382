"""What a comparison says where runs do not share what they were measured on or trained with."""

from typing import Any

from made_up.comparison import make_comparison, make_row
from tokencredit.lab.compare.document import concluded
from tokencredit.lab.compare.summary import shared_prompts

RECIPES = ("dapo", "delta", "random-lambda")


def notes(common: dict[str, Any] | None = None, by_recipe: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    """Of a comparison in which delta on seed 1 is otherwise."""
    rows = [make_row(recipe, seed) for recipe in RECIPES for seed in range(3) if (recipe, seed) != ("delta", 1)]
    settings = {"common": common or {}, "by_recipe": by_recipe or {}}
    return shared_prompts([*rows, make_row("delta", 1, **changes)], recipes=RECIPES, reference="dapo", settings=settings)


def about(words: str, found: list[str]) -> list[str]:
    return [note for note in found if words in note]


def test_nothing_is_told_where_everything_is_shared() -> None:
    assert notes() == []


def test_other_held_out_problems_make_no_pair() -> None:
    assert about(
        "Held-out problems differ between recipes for steps-shift seed 1: these runs are not paired.", notes(held_out_sha256="other")
    )


def test_held_out_problems_by_seed_are_told() -> None:
    rows = [make_row(recipe, seed, held_out_sha256=str(seed)) for recipe in RECIPES for seed in range(3)]
    found = shared_prompts(rows, recipes=RECIPES, reference="dapo", settings={"common": {}, "by_recipe": {}})
    assert about("Each seed has its own held-out problems", found) == found != []


def test_other_first_prompts_make_no_pair() -> None:
    found = notes(first_prompts_sha256="other")
    assert about("not paired", found) == [
        "delta trained on other first prompts than dapo on steps-shift seed 1: these runs are not paired."
    ]


def test_the_notes_of_a_comparison_have_it_of_reported_runs_alone() -> None:
    told = make_comparison(("dapo", "delta"), seeds=2)
    assert not about("trained on other first prompts", told["notes"])
    tuned, reported = (make_row("delta", 2, tuning=tuning, first_prompts_sha256="other") for tuning in (True, False))
    rows = [*told["runs"], make_row("dapo", 2)]
    assert not about("trained on other first prompts", concluded(told | {"runs": [*rows, tuned]})["notes"])
    assert about("trained on other first prompts", concluded(told | {"runs": [*rows, reported]})["notes"])


def test_other_first_prompts_are_expected_of_a_recipe_that_draws_more() -> None:
    by_recipe = {"dapo": {"sampling.prompts": 32}, "delta": {"sampling.prompts": 16}, "random-lambda": {"sampling.prompts": 32}}
    found = notes(by_recipe=by_recipe, first_prompts_sha256="other")
    assert not about("not paired", found)
    assert about("With 16 prompts a step, where dapo draws 32, pairs do not share training prompts: delta.", found)


def test_prompts_are_not_said_to_be_shared_where_both_numbers_differ() -> None:
    by_recipe = {name: {"sampling.prompts": 32, "sampling.group_size": 8} for name in RECIPES}
    by_recipe["delta"] = {"sampling.prompts": 256, "sampling.group_size": 1}
    found = notes(by_recipe=by_recipe, first_prompts_sha256="other")
    assert about("With 256 prompts a step, where dapo draws 32", found)
    assert not about("prompts are shared", found)


def test_dynamic_sampling_and_other_group_sizes_are_told() -> None:
    by_recipe = {name: {"filter_groups": name == "delta", "sampling.group_size": 4 if name == "delta" else 8} for name in RECIPES}
    found = notes(by_recipe=by_recipe)
    assert about("(filter_groups, delta): the replacement prompts are not shared", found)
    assert about("Group sizes differ from dapo's (delta)", found)
    assert about("(filter_groups, dapo, delta, random-lambda)", notes(common={"filter_groups": True}))
