"""A recipe as users of other engines give it, and what is refused in words."""

from pathlib import Path
from typing import Any, get_args

import pytest

from surface.methods import sampling
from tokencredit.config import DeltaCredit, NtfCredit, PassAtKAdvantage, Recipe
from tokencredit.config.recipe import varied
from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import read_recipe, resolve
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.pipeline.build import IN_A_PASS, refuse_sampling, sampled_evidence
from tokencredit.pipeline.distributed import refuse_ranks
from tokencredit.types import Evidence

SAMPLED = sampling()


@pytest.mark.parametrize("name", RECIPES)
def test_a_name_is_the_recipe_of_that_name(name: str) -> None:
    assert read_recipe(name) == RECIPES[name].recipe
    assert read_recipe({"recipe": name}) == RECIPES[name].recipe


def test_a_mapping_holds_differences() -> None:
    found = read_recipe({"recipe": "dapo", "credit": {"type": "delta", "lam_max": 1.5}, "kl": {"beta": 0.1}, "filter_retries": 2})
    dapo = RECIPES["dapo"].recipe
    assert found.credit == DeltaCredit(lam_max=1.5)
    assert (found.kl.beta, found.filter_retries) == (0.1, 2)
    assert (found.objective, found.advantage, found.shape) == (dapo.objective, dapo.advantage, dapo.shape)


def test_a_difference_leaves_the_other_numbers_of_its_stage() -> None:
    """Where it names another type, the numbers of the old one go."""
    longer = read_recipe({"recipe": "dapo", "objective": {"clip_low": 0.1}})
    assert longer.objective.type == "ppo-clip"
    assert longer.objective.clip_low == 0.1
    assert longer.objective.clip_high == RECIPES["dapo"].recipe.objective.clip_high != 0.2  # type: ignore[union-attr]
    assert read_recipe({"recipe": "delta", "credit": {"type": "ntf"}}).credit == NtfCredit()


def test_differences_without_a_name_are_those_from_the_default_recipe() -> None:
    default = RECIPES[TrainConfig.model_fields["recipe"].default].recipe
    assert read_recipe({}) == default
    clipped = default.objective.model_copy(update={"clip_low": 0.1})
    assert read_recipe({"objective": {"clip_low": 0.1}}) == varied(default, objective=clipped)


@pytest.mark.parametrize("spelled", [str, Path])
def test_a_file_holds_what_a_mapping_may(tmp_path: Path, spelled: Any) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('recipe = "ntf"\nfilter_groups = true\n[credit]\nkeep = 0.25\n')
    assert read_recipe(spelled(file)) == read_recipe({"recipe": "ntf", "filter_groups": True, "credit": {"keep": 0.25}})


def test_a_recipe_is_taken_as_it_is() -> None:
    given = Recipe(credit=DeltaCredit(scope="group"), filter_groups=True)
    assert read_recipe(given) == given
    assert read_recipe({"recipe": "grpo", "credit": DeltaCredit(scope="group")}).credit == given.credit


def test_of_a_whole_configuration_the_recipe_is_taken() -> None:
    """Even where it names a recipe and then changes it."""
    config = resolve([{"recipe": "ntf", "credit": {"keep": 0.3}, "sampling": {"prompts": 8}}])
    found = read_recipe(config)
    assert type(found) is Recipe
    assert found == Recipe(**{field: getattr(config, field) for field in Recipe.model_fields})
    assert found.credit == NtfCredit(keep=0.3)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("detla", "recipe 'detla' is not known; did you mean 'delta'?"),
        ({"recipe": "dappo"}, "recipe 'dappo' is not known; did you mean 'dapo'?"),
        ("qqq", "recipe 'qqq' is not known; there is grpo, dr-grpo,"),
        ({"recipe": 3}, "recipe 3 is not known"),
        ({"creditt": {"type": "ntf"}}, "'creditt' is no part of a recipe; did you mean 'credit'?"),
        ({"zzz": 1}, "'zzz' is no part of a recipe; there is shape, advantage, credit,"),
        ({"sampling": {"prompts": 4}}, "'sampling' is no part of a recipe; set it in the engine"),
        ({"recipe": "grpo", "seed": 4}, "'seed' is no part of a recipe; set it in the engine"),
        ({"recipe": "delta", "credit": {"lam_mni": 0.5}}, "credit.lam_mni is not a setting; did you mean 'lam_min'?"),
        ({"credit": {"type": "dleta"}}, "credit.type is 'dleta'; it must be one of"),
        ({"recipe": "delta", "credit": {"lam_min": -1}}, "credit.lam_min is -1"),
        ({"recipe": "delta", "credit": {"top_k": 3}}, "top_k is 3 but is read only when proxy is 'hidden-gradient'"),
        (
            {"recipe": "pass-at-k", "credit": {"type": "delta"}},
            "advantage 'pass-at-k' is never negative, so credit 'delta' has no negative side",
        ),
        ({"recipe": "gspo", "credit": {"type": "ntf"}, "objective": {"form": "sequence"}}, "use objective.form 'token'"),
        (Recipe().model_copy(update={"advantage": PassAtKAdvantage(), "credit": DeltaCredit()}), "advantage 'pass-at-k' is never negative"),
        ("nowhere.toml", "config file nowhere.toml does not exist"),
        (Path("nowhere"), "config file nowhere does not exist"),
        (None, "recipe is None; give a name, a TOML file, a mapping of differences or a Recipe"),
        (["delta"], "recipe is ['delta']; give a name"),
    ],
    ids=lambda part: str(part)[:30],
)
def test_mistakes_are_said_in_words(source: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_recipe(source)
    assert said in str(refusal.value)
    assert "pydantic" not in str(refusal.value)


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("recipe = \n")
    with pytest.raises(ConfigError, match=r"broken\.toml cannot be read as TOML"):
        read_recipe(str(file))


def test_the_first_of_several_unknown_keys_is_named() -> None:
    with pytest.raises(ConfigError, match="'task' is no part"):
        read_recipe({"recipe": "delta", "task": {}, "seed": 1, "optimizer": {}})


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_that_must_sample_are_refused_and_no_others(name: str) -> None:
    recipe = read_recipe(name)
    if name not in SAMPLED:
        refuse_sampling(recipe, "TRL")
        return
    with pytest.raises(ConfigError, match=rf"{SAMPLED[name]}.*which some engine is not asked to do; train it with the local engine"):
        refuse_sampling(recipe, "some engine")


def test_there_are_words_for_everything_that_must_be_sampled() -> None:
    must_be_sampled = set(get_args(Evidence)) - IN_A_PASS
    assert {"revisions", "prefix-values", "greedy-scores"} == must_be_sampled
    assert {need for name in SAMPLED for need in sampled_evidence(RECIPES[name].recipe)} == must_be_sampled
    assert set(SAMPLED.values()) == {
        "asks the policy to revise failed responses",
        "continues responses from the middle",
        "compares with the policy's greedy response",
    }


def test_imitated_shards_are_refused_on_real_ranks() -> None:
    shards = read_recipe({"recipe": "delta", "credit": {"scope": "shard"}})
    refuse_ranks(shards, 1)
    for scope in ("batch", "group"):
        refuse_ranks(read_recipe({"recipe": "delta", "credit": {"scope": scope}}), 8)
    for entry in RECIPES.values():
        refuse_ranks(entry.recipe, 8)
    with pytest.raises(ConfigError, match=r"there are 2 ranks, but credit\.scope 'shard' .*; use 'batch' or 'group'"):
        refuse_ranks(shards, 2)
