"""What must hold for every advantage, whatever the batch; and the wrong versions each law rejects.

A law takes the whole table, name -> stage function, so that a mutant is the real package with one line changed.
"""

import math
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch.testing import assert_close

from laws.harness import Law, for_all, law_tests_from_edits
from laws.mutants_advantage import (
    BATCH_LEVEL,
    GRADED_RESPONSES,
    GRADES,
    GROUP_IDS,
    GROUP_LEVEL,
    POWER,
    PRESETS,
    REDUCTIONS,
    REMAX,
    RESPONSES,
    advantage_of,
    advantages_with,
    inputs_of,
    of_one_prompt,
    rows_of,
)
from tokencredit.advantage import ADVANTAGES, AdvantageInputs, group_advantage

ALL = sorted(ADVANTAGES)
WITH_PRESET = ["grpo", "dr-grpo", "rloo", "reinforce++", "reinforce++-baseline", "opo", "gpg", "pass-at-k"]
WITHOUT_GROUPS = ["reinforce++", "c-rf", "remax"]
WHITENED = ["reinforce++", "reinforce++-baseline"]
PRESET_NAMES = st.sampled_from(["tokencredit", "trl", "verl"])
OUTCOMES = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=8)
GREEDY_SCORES = st.lists(st.one_of(GRADES, st.just(math.nan)), min_size=10, max_size=10)


# --- every advantage


@for_all(RESPONSES, st.integers(0, 99))
def permuting_responses_permutes_advantages(table, responses, seed):
    inputs = inputs_of(responses)
    order = torch.tensor(Random(seed).sample(range(len(responses)), len(responses)))
    for kind in ALL:
        assert_close(advantage_of(table, kind, rows_of(inputs, order)), advantage_of(table, kind, inputs)[order])


@for_all(RESPONSES, st.permutations(GROUP_IDS))
def group_ids_are_only_names(table, responses, new_names):
    inputs = inputs_of(responses)
    renamed = torch.tensor([dict(zip(GROUP_IDS, new_names, strict=True))[name] * 7 + 1 for name in inputs.group.tolist()])
    for kind in ALL:
        assert_close(advantage_of(table, kind, inputs._replace(group=renamed)), advantage_of(table, kind, inputs))


@for_all(RESPONSES, st.lists(st.sampled_from(GROUP_IDS), min_size=10, max_size=10))
def some_do_not_look_at_groups(table, responses, others):
    inputs = inputs_of(responses)
    regrouped = inputs._replace(group=torch.tensor(others[: len(responses)]))
    for kind in WITHOUT_GROUPS:
        assert_close(advantage_of(table, kind, regrouped), advantage_of(table, kind, inputs))


@for_all(RESPONSES)
def an_ungraded_response_receives_nothing_and_changes_nothing(table, responses):
    inputs = inputs_of(responses)
    graded = ~inputs.reward.isnan()
    for kind in ALL:
        result = advantage_of(table, kind, inputs)
        assert not result[~graded].any()
        if graded.any():
            assert_close(result[graded], advantage_of(table, kind, rows_of(inputs, graded)))


@for_all(RESPONSES)
def verl_reads_an_ungraded_response_as_reward_zero(table, responses):
    inputs = inputs_of(responses)
    zeroed = inputs._replace(reward=inputs.reward.nan_to_num())
    for kind in WITH_PRESET:
        assert_close(advantage_of(table, kind, inputs, preset="verl"), advantage_of(table, kind, zeroed, preset="verl"))


@for_all(GRADES, GRADED_RESPONSES)
def a_lone_response_gets_nothing_and_changes_nothing(table, lone_reward, responses):
    inputs = inputs_of([*responses, (lone_reward, 1000, 3)])
    for kind in [kind for kind in ALL if kind not in WITHOUT_GROUPS]:
        result = advantage_of(table, kind, inputs)
        assert result[-1] == 0
        # It is still a response of the batch: GPG counts it, FADE takes it into the solve rate.
        if kind not in ("gpg", "fade"):
            assert_close(result[:-1], advantage_of(table, kind, inputs_of(responses)))


@for_all(st.integers(-3000, 3000), RESPONSES, st.booleans())
def a_batch_of_one_value_gives_zero(table, thousandths, responses, single):
    """A decimal in seven places is not summed exactly, and with epsilon 0 no rounding is too small to be blown up.

    The greedy responses have that value too.
    """
    inputs = inputs_of([(reward if math.isnan(reward) else thousandths / 999, *rest) for reward, *rest in responses])
    inputs = inputs._replace(reward=inputs.reward.float()) if single else inputs
    inputs = inputs._replace(greedy_score=inputs.reward)
    for kind in [kind for kind in ALL if kind != "c-rf"]:
        options = {"epsilon": 0.0} if kind in ("grpo", "pass-at-k", *WHITENED) else {"alpha": 0.05} if kind == "power" else {}
        assert advantage_of(table, kind, inputs, **options).abs().max() < 1e-14


# --- shifts and scales


@for_all(RESPONSES, GRADES)
def shifting_all_rewards_changes_nothing(table, responses, shift):
    inputs = inputs_of(responses)
    for kind in ["reinforce++", "reinforce++-baseline", "opo", "pass-at-k", "asym"]:
        assert_close(advantage_of(table, kind, inputs._replace(reward=inputs.reward + shift)), advantage_of(table, kind, inputs))


@for_all(RESPONSES, st.integers(1, 32))
def scaling_rewards_scales_differences_and_leaves_what_is_normalised(table, responses, quarters):
    inputs, scale = inputs_of(responses), quarters / 4
    for kind in [*WHITENED, "opo", "gpg", "pass-at-k", "asym"]:
        options = {"epsilon": 0.0} if kind in WHITENED else {"normalize": False} if kind == "pass-at-k" else {}
        expected = advantage_of(table, kind, inputs, **options) * (1.0 if kind in WHITENED else scale)
        assert_close(advantage_of(table, kind, inputs._replace(reward=inputs.reward * scale), **options), expected)


# --- within a group


@for_all(RESPONSES, PRESET_NAMES)
def groups_do_not_see_each_other(table, responses, preset):
    inputs = inputs_of(responses)
    for kind in ["grpo", "dr-grpo", "rloo", "opo", "pass-at-k", "power", "asym"]:
        options = {"preset": preset} if kind in WITH_PRESET else {}
        together = advantage_of(table, kind, inputs, **options)
        for name in inputs.group.unique():
            rows = inputs.group == name
            assert_close(advantage_of(table, kind, rows_of(inputs, rows), **options), together[rows])


@for_all(RESPONSES)
def opo_advantages_of_the_tokens_of_a_group_sum_to_zero(table, responses):
    inputs = inputs_of(responses)
    by_token = advantage_of(table, "opo", inputs) * inputs.length
    for name in inputs.group.unique():
        assert abs(float(by_token[inputs.group == name].sum())) < 1e-12


@for_all(RESPONSES, st.integers(1, 6), PRESET_NAMES)
def opo_of_equal_lengths_is_dr_grpo(table, responses, length, preset):
    inputs = inputs_of([(reward, group, length) for reward, group, _ in responses])
    assert_close(advantage_of(table, "opo", inputs, preset=preset), advantage_of(table, "dr-grpo", inputs, preset=preset))


@for_all(st.lists(GRADES, min_size=2, max_size=8), PRESET_NAMES)
def rloo_is_dr_grpo_over_the_share_of_siblings(table, rewards, preset):
    inputs = of_one_prompt(rewards)
    expected = advantage_of(table, "dr-grpo", inputs, preset=preset) * len(rewards) / (len(rewards) - 1)
    assert_close(advantage_of(table, "rloo", inputs, preset=preset), expected)


@for_all(RESPONSES, st.booleans(), PRESET_NAMES)
def pass_at_k_credits_a_sole_best_by_its_lead(table, responses, normalize, preset):
    inputs = inputs_of(responses)
    result = advantage_of(table, "pass-at-k", inputs, normalize=normalize, preset=preset)
    reward = inputs.reward.nan_to_num() if preset == "verl" else inputs.reward
    assert not result[reward.isnan()].any()
    for name in inputs.group.unique():
        rows = (inputs.group == name) & ~reward.isnan()
        ranked = sorted(reward[rows].tolist(), reverse=True)
        credited = result[rows][result[rows] != 0].tolist()
        if len(ranked) < 2 or ranked[0] == ranked[1]:
            assert credited == []
        else:
            spread = math.sqrt(sum((r - sum(ranked) / len(ranked)) ** 2 for r in ranked) / (len(ranked) - 1)) if normalize else 1.0
            assert credited == [pytest.approx((ranked[0] - ranked[1]) / spread, rel=1e-3)]
            assert reward[rows][result[rows] != 0].tolist() == [ranked[0]]


# --- over the batch


@for_all(RESPONSES, PRESET_NAMES)
def whitened_advantages_have_mean_zero_and_spread_one_over_tokens(table, responses, preset):
    inputs = inputs_of(responses)
    for kind in WHITENED:
        result = advantage_of(table, kind, inputs, preset=preset)
        counted = inputs.length * (torch.ones_like(inputs.reward) if preset == "verl" else ~inputs.reward.isnan())
        if kind == "reinforce++-baseline" and preset != "verl":
            siblings = [int(((inputs.group == name) & ~inputs.reward.isnan()).sum()) for name in inputs.group]
            counted = counted * (torch.tensor(siblings) > 1)
        tokens = result.repeat_interleave(counted.long())
        if len(tokens) > 1:
            assert abs(float(tokens.mean())) < 1e-12
            assert float(tokens.std()) == pytest.approx(1.0 if len(tokens.unique()) > 1 else 0.0, abs=1e-5)
        assert not result[counted == 0].any()


@for_all(GRADED_RESPONSES)
def whitened_over_responses_each_counts_once(table, responses):
    inputs = inputs_of(responses)
    result = advantage_of(table, "reinforce++", inputs, over="responses")
    assert abs(float(result.mean())) < 1e-12
    if len(inputs.reward.unique()) > 1:
        assert float(result.std()) == pytest.approx(1.0, abs=1e-5)
    stretched = inputs._replace(length=inputs.length * 3 + 1)
    assert_close(advantage_of(table, "reinforce++", stretched, over="responses"), result)


@for_all(GRADED_RESPONSES, GRADES)
def epsilon_is_added_to_the_variance(table, responses, reward):
    """Four times as much variance halves the result: epsilon 3 v beside epsilon 0."""
    inputs = inputs_of([*responses, (reward, 0, 2), (reward + 1, 0, 2)])
    variance = float(inputs.reward.repeat_interleave(inputs.length).var())
    bare = advantage_of(table, "reinforce++", inputs, epsilon=0.0)
    assert_close(advantage_of(table, "reinforce++", inputs, epsilon=3 * variance), bare / 2)


@for_all(GRADED_RESPONSES, GRADES)
def a_response_without_tokens_weighs_nothing(table, responses, reward):
    """A prompt of two, neither with a token: whatever their rewards, the rest of the batch stays as it was."""
    inputs = inputs_of([*responses, (reward, 1000, 0), (reward + 1, 1000, 0)])
    alone = inputs_of(responses)
    for kind in [*WHITENED, "opo"]:
        result = advantage_of(table, kind, inputs)
        assert_close(result[:-2], advantage_of(table, kind, alone))
        assert not result[-2:].any()


@for_all(st.lists(st.tuples(GRADES, st.sampled_from([0, 1, 6])), min_size=2, max_size=10), st.integers(1, 6))
def reinforce_pp_baseline_of_equal_lengths_is_dr_grpo_on_one_scale(table, rewards, length):
    """Groups of at least two, so that nobody is left out; the mean of d is 0 and only its spread is divided by."""
    inputs = inputs_of([(reward, group, length) for reward, group in [*rewards, *rewards]])
    centred = advantage_of(table, "dr-grpo", inputs)
    spread = float(centred.repeat_interleave(length).std())
    expected = centred / math.sqrt(spread**2 + 1e-8)
    assert_close(advantage_of(table, "reinforce++-baseline", inputs), expected, rtol=1e-9, atol=1e-9)


@for_all(RESPONSES, PRESET_NAMES)
def gpg_is_dr_grpo_times_responses_per_rewarded_response(table, responses, preset):
    inputs = inputs_of(responses)
    reward = inputs.reward.nan_to_num() if preset == "verl" else inputs.reward[~inputs.reward.isnan()]
    rewarded = max(1, int((reward != 0).sum()))
    expected = advantage_of(table, "dr-grpo", inputs, preset=preset) * len(reward)
    assert_close(advantage_of(table, "gpg", inputs, preset=preset) * rewarded, expected)


@for_all(RESPONSES, GRADES)
def c_rf_sides_weigh_the_same_and_together_one_per_response(table, responses, threshold):
    inputs = inputs_of(responses)
    result = advantage_of(table, "c-rf", inputs, threshold=threshold)
    graded = ~inputs.reward.isnan()
    positive, negative = float(result.clamp(min=0).sum()), -float(result.clamp(max=0).sum())
    assert positive + negative == pytest.approx(float(graded.sum()))
    assert positive == pytest.approx(negative) or positive == 0 or negative == 0
    assert bool(((result > 0) == (graded & (inputs.reward > threshold))).all())
    assert bool(((result < 0) == (graded & (inputs.reward <= threshold))).all())
    for side in (result[result > 0], result[result < 0]):
        assert len(side.unique()) <= 1


@for_all(RESPONSES, st.lists(st.one_of(GRADES, st.just(100.0)), min_size=10, max_size=10), GRADES)
def shaping_cannot_change_what_c_rf_calls_a_success(table, responses, shaped, threshold):
    inputs = inputs_of(responses)
    reshaped = inputs._replace(reward=torch.tensor(shaped[: len(responses)], dtype=torch.float64))
    assert torch.equal(advantage_of(table, "c-rf", reshaped, threshold=threshold), advantage_of(table, "c-rf", inputs, threshold=threshold))


# --- the greedy baseline


def beside(responses: list[tuple[float, int, int]], greedy: list[float]) -> AdvantageInputs:
    """With a greedy score for every response, whatever its prompt."""
    return inputs_of(responses)._replace(greedy_score=torch.tensor(greedy[: len(responses)], dtype=torch.float64))


@for_all(RESPONSES, GREEDY_SCORES, GRADES)
def shifting_rewards_and_greedy_scores_alike_changes_nothing(table, responses, greedy, shift):
    inputs = beside(responses, greedy)
    shifted = inputs._replace(reward=inputs.reward + shift, greedy_score=inputs.greedy_score + shift)
    assert torch.equal(advantage_of(table, "remax", shifted), advantage_of(table, "remax", inputs))


@for_all(GRADED_RESPONSES, st.lists(GRADES, min_size=10, max_size=10), st.integers(0, 9), GRADES)
def raising_a_reward_raises_its_own_advantage_alone(table, responses, greedy, place, rise):
    inputs = beside(responses, greedy)
    risen = torch.zeros_like(inputs.reward)
    risen[place % len(responses)] = rise
    change = advantage_of(table, "remax", inputs._replace(reward=inputs.reward + risen)) - advantage_of(table, "remax", inputs)
    assert torch.equal(change, risen)


@for_all(RESPONSES, GREEDY_SCORES)
def an_ungraded_greedy_response_silences_whom_it_is_compared_with_and_nobody_else(table, responses, greedy):
    inputs = beside(responses, greedy)
    known = ~inputs.greedy_score.isnan()
    result = advantage_of(table, "remax", inputs)
    assert not result[~known].any()
    if known.any():
        assert torch.equal(result[known], advantage_of(table, "remax", rows_of(inputs, known)))


# --- sign beside difficulty


ALPHAS, DELTAS = st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.sampled_from([0.25, 0.5, 1.0, 2.0])


@for_all(RESPONSES, DELTAS)
def power_without_focus_is_asym(table, responses, delta):
    inputs = inputs_of(responses)
    expected = advantage_of(table, "asym", inputs, delta=delta)
    for scale in ("none", "peak"):
        assert torch.equal(advantage_of(table, "power", inputs, alpha=1.0, delta=delta, scale=scale), expected)


@for_all(RESPONSES, ALPHAS, DELTAS)
def delta_divides_failures_and_leaves_the_rest(table, responses, alpha, delta):
    """Powers of two, so to the bit; where nothing is said of delta it is 1."""
    inputs = inputs_of(responses)
    plain = advantage_of(table, "power", inputs, alpha=alpha)
    assert torch.equal(advantage_of(table, "power", inputs, alpha=alpha, delta=1.0), plain)
    expected = torch.where(plain < 0, plain / delta, plain)
    assert torch.equal(advantage_of(table, "power", inputs, alpha=alpha, delta=delta), expected)


@for_all(OUTCOMES, ALPHAS, DELTAS)
def power_with_delta_has_the_masses_of_the_paper(table, outcomes, alpha, delta):
    """The successes of a prompt sum to G p q^alpha, its failures to minus that over delta, whatever the prompt beside it."""
    inputs = inputs_of([*[(outcome, 6, 1) for outcome in outcomes], (1.0, 40, 1), (1.0, 40, 1), (0.0, 40, 1)])
    result = advantage_of(table, "power", inputs, alpha=alpha, delta=delta)[: len(outcomes)]
    solved = sum(outcomes) / len(outcomes)
    mass = len(outcomes) * solved * (1 - solved) ** alpha
    assert float(result.clamp(min=0).sum()) == pytest.approx(mass, abs=1e-9)
    assert float(result.clamp(max=0).sum()) == pytest.approx(-mass / delta, abs=1e-9)


LAWS: dict[Law, tuple[str, ...]] = {
    permuting_responses_permutes_advantages: (
        "groups are runs of rows",
        "siblings are runs of rows",
        "greedy scores in another order",
    ),
    group_ids_are_only_names: ("a group's id is its row",),
    some_do_not_look_at_groups: ("whitened within groups", "compared in the group too"),
    an_ungraded_response_receives_nothing_and_changes_nothing: (
        "ungraded is zero",
        "ungraded tokens are counted",
        "boost counts ungraded responses",
        "mass is the whole batch's",
        "ungraded is a failure",
        "an ungraded response scored 0",
    ),
    verl_reads_an_ungraded_response_as_reward_zero: ("ungraded is never zero",),
    a_lone_response_gets_nothing_and_changes_nothing: ("a lone response keeps its reward", "a lone response is a zero"),
    a_batch_of_one_value_gives_zero: ("rounding is spread", "no guard against rounding", "a dead group keeps its rounding"),
    shifting_all_rewards_changes_nothing: ("whitened without a mean", "opo leaves the batch uncompared"),
    scaling_rewards_scales_differences_and_leaves_what_is_normalised: ("always normalised",),
    groups_do_not_see_each_other: ("groups are runs of rows",),
    opo_advantages_of_the_tokens_of_a_group_sum_to_zero: (
        "opo weighs responses alike",
        "opo weighs by the inverse length",
        "lengths are ignored",
    ),
    opo_of_equal_lengths_is_dr_grpo: ("opo leaves the batch uncompared",),
    rloo_is_dr_grpo_over_the_share_of_siblings: ("rloo with its own reward",),
    pass_at_k_credits_a_sole_best_by_its_lead: (
        "a shared best has a runner-up",
        "the best sibling is oneself",
        "every leader is credited",
        "losers are blamed",
        "lead over the mean",
        "never normalised",
        "verl keeps a lone reward",
    ),
    whitened_advantages_have_mean_zero_and_spread_one_over_tokens: (
        "lengths are ignored",
        "population variance",
        "tokens are responses",
        "whitened without a mean",
        "a response without tokens is whitened",
        "whitened over responses after the baseline",
    ),
    whitened_over_responses_each_counts_once: ("responses are tokens",),
    epsilon_is_added_to_the_variance: ("epsilon beside the standard deviation",),
    a_response_without_tokens_weighs_nothing: ("tokens are responses", "a response without tokens is whitened", "lengths are ignored"),
    reinforce_pp_baseline_of_equal_lengths_is_dr_grpo_on_one_scale: ("the baseline is the batch's", "population variance"),
    gpg_is_dr_grpo_times_responses_per_rewarded_response: ("no boost", "boost by positive rewards", "boost per group"),
    c_rf_sides_weigh_the_same_and_together_one_per_response: (
        "sides not balanced",
        "a single side is halved",
        "the threshold is a success",
        "mass is the whole batch's",
    ),
    shaping_cannot_change_what_c_rf_calls_a_success: ("the shaped reward is the outcome",),
    shifting_rewards_and_greedy_scores_alike_changes_nothing: ("no baseline", "divided by the baseline"),
    raising_a_reward_raises_its_own_advantage_alone: (
        "the larger of the two",
        "divided by the baseline",
        "compared in the batch too",
        "compared in the group too",
    ),
    an_ungraded_greedy_response_silences_whom_it_is_compared_with_and_nobody_else: (
        "an ungraded greedy response scored 0",
        "one ungraded greedy response silences all",
        "one greedy score for the batch",
    ),
    power_without_focus_is_asym: ("delta is ignored", "delta is turned over", "delta for both sides"),
    delta_divides_failures_and_leaves_the_rest: ("delta is ignored", "delta for both sides", "failures weigh more unasked"),
    power_with_delta_has_the_masses_of_the_paper: ("delta to the power of alpha", "delta is turned over"),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(
    LAWS, advantages_with, REDUCTIONS, PRESETS, BATCH_LEVEL, GROUP_LEVEL, REMAX, POWER
)


# --- what is refused, in the words a user reads


REWARD, GROUP, LENGTH = torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0, 0, 1]), torch.tensor([2, 3, 1])


def test_a_length_of_another_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="reward holds 3 responses but length holds 2; they must be the same"):
        group_advantage(REWARD, GROUP, kind="opo", length=LENGTH[:2])


@pytest.mark.parametrize(("kind", "name"), [("c-rf", "score"), ("remax", "greedy_score")])
def test_evidence_that_is_missing_is_named(kind: str, name: str) -> None:
    whole = AdvantageInputs(REWARD, GROUP, LENGTH, score=REWARD, greedy_score=REWARD)
    assert ADVANTAGES[kind](whole, {}).advantage.isfinite().all()
    with pytest.raises(ValueError, match=f"^{name} is missing; "):
        ADVANTAGES[kind](whole._replace(**{name: None}), {})


@pytest.mark.parametrize("kind", ["fade", "power", "asym", "c-rf", "remax"])
def test_kinds_without_a_preset_are_refused_by_name(kind: Any) -> None:
    with pytest.raises(ValueError, match=f"kind is '{kind}'; it must be one of grpo, dr-grpo, rloo, reinforce"):
        group_advantage(REWARD, GROUP, kind=kind)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("reinforce++", {"over": "groups"}, "over is 'groups'; it must be tokens or responses"),
        ("power", {"scale": "mean"}, "scale is 'mean'; it must be none or peak"),
        ("opo", {"preset": "openrlhf"}, "preset is 'openrlhf'; it must be one of tokencredit, trl, verl"),
    ],
)
def test_a_wrong_option_is_named(kind: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ADVANTAGES[kind](AdvantageInputs(REWARD, GROUP, LENGTH), {}, **options)
