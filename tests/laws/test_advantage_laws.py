"""What must hold for one number per response, whatever the rewards; and the wrong versions each law rejects."""

import math
from random import Random

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from laws import mutants_group_advantage as mutants
from laws.harness import Law, for_all, functions_of, law_tests_from_functions
from tokencredit.advantage import group_advantage
from tokencredit.masked import group_statistics

KINDS = st.sampled_from(["grpo", "dr-grpo", "rloo"])
PRESETS = st.sampled_from(["tokencredit", "trl", "verl"])
LEAVING_UNGRADED_OUT = st.sampled_from(["tokencredit", "trl"])
GROUP_IDS = st.sampled_from([-3, 0, 1, 6, 40])
# Quarters, so that sums of rewards are exact and a difference between two results is never their rounding.
GRADES = st.integers(-16, 16).map(lambda quarters: quarters / 4)
RESPONSES = st.lists(st.tuples(GRADES | GRADES | st.just(math.nan), GROUP_IDS), min_size=1, max_size=10)
GRADED_RESPONSES = st.lists(st.tuples(GRADES, GROUP_IDS), min_size=1, max_size=10)
SIBLINGS = st.lists(GRADES, min_size=2, max_size=8)


def tensors(responses: list[tuple[float, int]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([reward for reward, _ in responses], dtype=torch.float64), torch.tensor([group for _, group in responses])


def as_one_group(siblings: list[float]) -> tuple[Tensor, Tensor]:
    return tensors([(reward, 6) for reward in siblings])


@for_all(RESPONSES, KINDS, PRESETS, st.integers(0, 99))
def permuting_responses_permutes_advantages(advantage, responses, kind, preset, seed):
    reward, group = tensors(responses)
    order = torch.tensor(Random(seed).sample(range(len(reward)), len(reward)))
    assert_close(
        advantage(reward[order], group[order], kind=kind, preset=preset), advantage(reward, group, kind=kind, preset=preset)[order]
    )


@for_all(RESPONSES, KINDS, PRESETS, st.permutations([-3, 0, 1, 6, 40]))
def group_ids_are_only_names(advantage, responses, kind, preset, new_names):
    reward, group = tensors(responses)
    renamed = torch.tensor([dict(zip([-3, 0, 1, 6, 40], new_names, strict=True))[name] * 7 + 1 for name in group.tolist()])
    assert_close(advantage(reward, renamed, kind=kind, preset=preset), advantage(reward, group, kind=kind, preset=preset))


@for_all(RESPONSES, KINDS, PRESETS)
def groups_do_not_see_each_other(advantage, responses, kind, preset):
    reward, group = tensors(responses)
    together = advantage(reward, group, kind=kind, preset=preset)
    for name in group.unique():
        rows = group == name
        assert_close(advantage(reward[rows], group[rows], kind=kind, preset=preset), together[rows])


@for_all(RESPONSES, KINDS, LEAVING_UNGRADED_OUT, GRADES)
def shifting_all_rewards_changes_nothing(advantage, responses, kind, preset, shift):
    reward, group = tensors(responses)
    assert_close(advantage(reward + shift, group, kind=kind, preset=preset), advantage(reward, group, kind=kind, preset=preset))


@for_all(RESPONSES, KINDS, st.integers(1, 32))
def scaling_rewards_scales_centred_advantages_and_leaves_grpo(advantage, responses, kind, quarters):
    reward, group = tensors(responses)
    scale = quarters / 4
    expected = advantage(reward, group, kind=kind, preset="tokencredit") * (1.0 if kind == "grpo" else scale)
    # Epsilon does not scale: a millionth beside a spread of at least 1/32.
    assert_close(advantage(reward * scale, group, kind=kind, preset="tokencredit"), expected, rtol=2e-4, atol=1e-12)


@for_all(RESPONSES, KINDS, PRESETS)
def swapping_signs_of_rewards_swaps_signs_of_advantages(advantage, responses, kind, preset):
    reward, group = tensors(responses)
    assert_close(advantage(-reward, group, kind=kind, preset=preset), -advantage(reward, group, kind=kind, preset=preset))


@for_all(RESPONSES, KINDS, LEAVING_UNGRADED_OUT)
def advantages_of_a_group_sum_to_zero(advantage, responses, kind, preset):
    reward, group = tensors(responses)
    result = advantage(reward, group, kind=kind, preset=preset)
    for name in group.unique():
        assert abs(float(result[group == name].sum())) < 1e-12


@for_all(RESPONSES, KINDS, LEAVING_UNGRADED_OUT)
def an_ungraded_response_receives_nothing_and_changes_nothing(advantage, responses, kind, preset):
    reward, group = tensors(responses)
    graded = ~reward.isnan()
    result = advantage(reward, group, kind=kind, preset=preset)
    assert not result[~graded].any()
    if graded.any():
        assert_close(result[graded], advantage(reward[graded], group[graded], kind=kind, preset=preset))


@for_all(RESPONSES, KINDS)
def verl_reads_an_ungraded_response_as_reward_zero(advantage, responses, kind):
    reward, group = tensors(responses)
    zeroed = torch.where(reward.isnan(), 0.0, reward)
    assert_close(advantage(reward, group, kind=kind, preset="verl"), advantage(zeroed, group, kind=kind, preset="verl"))


@for_all(SIBLINGS, PRESETS)
def grpo_advantages_have_sample_spread_one(advantage, siblings, preset):
    reward, group = as_one_group(siblings)
    result = advantage(reward, group, kind="grpo", preset=preset)
    expected = 1.0 if len(set(siblings)) > 1 else 0.0
    assert float(group_statistics(result, group).std[0]) == pytest.approx(expected, rel=2e-3, abs=1e-12)


@for_all(GRADES, st.integers(2, 8), KINDS, PRESETS)
def equal_rewards_give_zero(advantage, reward, size, kind, preset):
    result = advantage(*as_one_group([reward] * size), kind=kind, preset=preset)
    assert result.tolist() == [0.0] * size


@for_all(GRADES, GRADED_RESPONSES, KINDS, PRESETS)
def a_lone_response_has_nobody_to_be_compared_with(advantage, lone_reward, responses, kind, preset):
    reward, group = tensors([*responses, (lone_reward, 1000)])
    expected = lone_reward if preset == "verl" else 0.0
    assert float(advantage(reward, group, kind=kind, preset=preset)[-1]) == pytest.approx(expected, rel=2e-6)


@for_all(SIBLINGS, GRADES, PRESETS)
def rloo_baseline_leaves_the_response_itself_out(advantage, siblings, gain, preset):
    better = [siblings[0] + gain, *siblings[1:]]
    before, after = (float(advantage(*as_one_group(rewards), kind="rloo", preset=preset)[0]) for rewards in (siblings, better))
    assert after - before == pytest.approx(gain, abs=1e-12)


@for_all(SIBLINGS, KINDS, PRESETS)
def a_better_reward_never_has_a_lower_advantage(advantage, siblings, kind, preset):
    result = advantage(*as_one_group(sorted(siblings)), kind=kind, preset=preset)
    assert bool((result.diff() >= 0).all())
    assert bool((result.diff() > 0).any()) == (len(set(siblings)) > 1)


LAWS: dict[Law, tuple] = {
    permuting_responses_permutes_advantages: (mutants.contiguous_groups_only,),
    group_ids_are_only_names: (mutants.group_id_as_index,),
    groups_do_not_see_each_other: (mutants.global_mean, mutants.group_id_as_index),
    shifting_all_rewards_changes_nothing: (mutants.uncentred, mutants.ungraded_counts_as_zero, mutants.lone_response_keeps_reward),
    scaling_rewards_scales_centred_advantages_and_leaves_grpo: (mutants.clipped_reward,),
    swapping_signs_of_rewards_swaps_signs_of_advantages: (mutants.only_the_better_half,),
    advantages_of_a_group_sum_to_zero: (mutants.global_mean, mutants.only_the_better_half, mutants.ungraded_counts_as_zero),
    an_ungraded_response_receives_nothing_and_changes_nothing: (mutants.ungraded_counts_as_zero,),
    verl_reads_an_ungraded_response_as_reward_zero: (mutants.ungraded_left_out,),
    grpo_advantages_have_sample_spread_one: (mutants.population_std,),
    equal_rewards_give_zero: (mutants.bare_std, mutants.uncentred),
    a_lone_response_has_nobody_to_be_compared_with: (mutants.lone_response_keeps_reward, mutants.ungraded_left_out),
    rloo_baseline_leaves_the_response_itself_out: (mutants.baseline_with_own_reward,),
    a_better_reward_never_has_a_lower_advantage: (mutants.clipped_reward,),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_functions(
    LAWS, lambda law: group_advantage, functions_of(mutants)
)
