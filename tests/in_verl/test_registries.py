"""Recipes in verl's own tables: which, and that estimator and loss give what the local engine's stages give."""

import random

import pytest
import torch
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY, get_adv_estimator_fn, get_policy_loss_fn
from verl.workers.config.actor import PolicyLossConfig

from in_verl.function_route import (
    LIMIT,
    ROWS,
    actor_config,
    advantages_in_verl,
    filling_rows,
    joined_rows,
    locally,
    loss_in_verl,
    random_rows,
)
from surface.methods import refused_by, runs_by
from tokencredit.config.recipes import RECIPES
from tokencredit.errors import ConfigError, GuardError
from tokencredit.integrations.support import unsupported_by_functions_reason

FUNCTIONS = runs_by("verl, by name")
NOT_BY_FUNCTIONS = refused_by("verl, by name")
SILENCE_NOBODY = {"gpg", "sapo", "cispo", "right-once"}


def test_every_recipe_is_registered_or_has_a_reason_not_to_be() -> None:
    assert {*FUNCTIONS, *NOT_BY_FUNCTIONS} == set(RECIPES)
    for name, words in NOT_BY_FUNCTIONS.items():
        assert words == unsupported_by_functions_reason(RECIPES[name].recipe)
    names = {f"tokencredit-{name}" for name in FUNCTIONS}
    assert {name for name in POLICY_LOSS_REGISTRY if name.startswith("tokencredit")} == names
    assert {name for name in ADV_ESTIMATOR_REGISTRY if str(name).startswith("tokencredit")} == names | {"tokencredit"}


def test_a_correction_is_left_to_verl() -> None:
    changed = RECIPES["grpo"].recipe.model_dump() | {"correction": {"kind": "tis"}}
    assert "algorithm.rollout_correction" in str(unsupported_by_functions_reason(type(RECIPES["grpo"].recipe).model_validate(changed)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_estimator_and_loss_give_the_local_engines_numbers(name: str) -> None:
    """Two ranks, micro-batches of uneven size, rows in any order."""
    rows = random_rows()
    expected = locally(rows, RECIPES[name].recipe)
    order = list(range(len(rows.uid)))
    random.Random(1).shuffle(order)
    shuffled = rows.taken(order)
    advantages = advantages_in_verl(shuffled, f"tokencredit-{name}")
    per_token = expected.advantage[:, None] * rows.mask
    torch.testing.assert_close(advantages, per_token[order].to(advantages.dtype), atol=1e-6, rtol=1e-6)
    assert expected.advantage.any()

    shares = [[[0, 1, 2, 3, 4], [5], [6, 7, 8, 9, 10, 11]], [[12, 13], [14, 15, 16, 17, 18, 19], [20, 21, 22, 23]]]
    found = loss_in_verl(shuffled, advantages, actor_config(f"tokencredit-{name}"), shares)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(found.gradient, expected.kappa[order].to(found.gradient.dtype), atol=1e-7, rtol=1e-5)
    assert (expected.silenced_share > 0) == (name not in SILENCE_NOBODY)

    whole = loss_in_verl(shuffled, advantages, actor_config(f"tokencredit-{name}"), [[list(range(ROWS))]])
    assert whole.metrics[0]["actor/silenced_share"].aggregate() == pytest.approx(expected.silenced_share)
    torch.testing.assert_close(whole.gradient, found.gradient, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("name", ["grpo", "reinforce++", "opo", "pass-at-k", "c-rf", "power"])
def test_groups_are_known_by_uid_and_filling_rows_take_no_part(name: str) -> None:
    rows = random_rows(1)
    alone = advantages_in_verl(rows, f"tokencredit-{name}")
    filled = joined_rows(filling_rows(5), rows)
    order = list(range(5 + ROWS))
    random.Random(2).shuffle(order)
    found = advantages_in_verl(filled.taken(order), f"tokencredit-{name}")
    torch.testing.assert_close(found, torch.cat([torch.zeros(5, LIMIT), alone])[order], atol=1e-6, rtol=1e-6)


def test_filling_rows_give_no_gradient_and_no_tokens_to_the_mean() -> None:
    rows = random_rows(2)
    filled = joined_rows(rows, filling_rows(4))
    alone, beside = (
        loss_in_verl(some, advantages_in_verl(some, "tokencredit-cispo"), actor_config("tokencredit-cispo"), shares)
        for some, shares in ((rows, [[list(range(ROWS))]]), (filled, [[list(range(12)), [24, 25]], [list(range(12, 24)), [26, 27]]]))
    )
    torch.testing.assert_close(beside.gradient[:ROWS], alone.gradient, atol=1e-8, rtol=1e-5)
    assert not beside.gradient[ROWS:].any()


def test_an_ungraded_response_has_no_credit_and_leaves_its_siblings_comparable() -> None:
    rows = random_rows()
    (ungraded,) = rows.reward.isnan().nonzero()[:, 0].tolist()
    found = advantages_in_verl(rows, "tokencredit-grpo")
    assert found.isfinite().all()
    assert not found[ungraded].any()
    others = [row for row in range(ROWS) if row != ungraded]
    torch.testing.assert_close(found[others], advantages_in_verl(rows.taken(others), "tokencredit-grpo"), atol=1e-6, rtol=1e-6)


def test_an_infinite_reward_is_refused() -> None:
    rows = random_rows()
    with pytest.raises(GuardError, match="1 of 24 rewards are infinite"):
        advantages_in_verl(rows._replace(reward=rows.reward.index_fill(0, torch.tensor([3]), torch.inf)), "tokencredit-grpo")


def test_verls_correction_weights_multiply_the_token_losses() -> None:
    rows, config = random_rows(3), actor_config("tokencredit-ntf")
    advantages = advantages_in_verl(rows, "tokencredit-ntf")
    shares = [[list(range(10)), list(range(10, 24))]]
    weights = 2 * torch.rand(ROWS, LIMIT)
    plain = loss_in_verl(rows, advantages, config, shares)
    weighed = loss_in_verl(rows, advantages, config, shares, weights=weights)
    torch.testing.assert_close(weighed.gradient, plain.gradient * weights, atol=1e-8, rtol=1e-5)


@pytest.mark.parametrize(("name", "needed"), [("grpo", "seq-mean-token-mean"), ("gpg", "token-mean"), ("rloo", "seq-mean-token-sum-norm")])
def test_another_way_to_divide_is_refused(name: str, needed: str) -> None:
    rows = random_rows()
    for mode in {"token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"} - {needed}:
        config = actor_config(f"tokencredit-{name}", loss_agg_mode=mode)
        words = f"actor_rollout_ref.actor.loss_agg_mode is '{mode}' but recipe '{name}' needs '{needed}'; set it so"
        with pytest.raises(ConfigError, match=words):
            loss_in_verl(rows, rows.logp, config, [[list(range(ROWS))]])


def test_a_constant_length_must_be_given() -> None:
    rows = random_rows()
    config = actor_config("tokencredit-dr-grpo", loss_scale_factor=None)
    with pytest.raises(ConfigError, match=r"set actor_rollout_ref\.actor\.loss_scale_factor to data\.max_response_length"):
        loss_in_verl(rows, rows.logp, config, [[list(range(ROWS))]])


def test_log_probs_that_are_not_finite_stop_the_run() -> None:
    rows = random_rows()
    advantages = advantages_in_verl(rows, "tokencredit-grpo")
    inside = tuple(rows.mask.nonzero()[7].tolist())
    for column, words in (("logp", "log_prob of 1 tokens"), ("old_logp", "old_log_prob of 1 tokens")):
        broken = getattr(rows, column).clone()
        broken[inside] = torch.nan
        with pytest.raises(GuardError, match=words):
            loss_in_verl(rows._replace(**{column: broken}), advantages, actor_config("tokencredit-grpo"), [[list(range(ROWS))]])


def test_the_estimator_of_the_trainer_mode_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set trainer\.v1\.trainer_mode=tokencredit too"):
        advantages_in_verl(random_rows(), "tokencredit")


def test_responses_without_a_uid_are_refused() -> None:
    rows = random_rows()
    with pytest.raises(ConfigError, match="gave no uid"):
        get_adv_estimator_fn("tokencredit-grpo")(token_level_rewards=rows.logp, response_mask=rows.mask.long(), config=None)


def test_ntf_refuses_advantages_that_differ_within_a_response() -> None:
    rows = random_rows()
    config = actor_config("tokencredit-ntf")
    with pytest.raises(ConfigError, match="credit 'ntf' starts from one advantage per response"):
        loss_in_verl(rows, torch.randn(ROWS, LIMIT), config, [[list(range(ROWS))]])


def test_verls_own_names_are_left_alone() -> None:
    assert get_policy_loss_fn("vanilla").__module__.startswith("verl.")
    assert get_adv_estimator_fn("grpo").__module__.startswith("verl.")
    assert PolicyLossConfig().loss_mode == "vanilla"
