"""Advantages that compare a response with a baseline: GRPO, Dr.GRPO, RLOO, OPO, GPG, pass@k, ReMax and C-RF."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.base import PRESETS, AdvantageInputs, AdvantageOutcome, PresetName, get_preset, reward_of_preset, with_edge_cases
from tokencredit.masked import best_sibling, group_statistics
from tokencredit.types import State


def grpo_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit", epsilon: float | None = None
) -> Float[Tensor, " seq"]:
    """GRPO (DeepSeekMath, 2402.03300): A_i = (R_i - mean_g) / (std_g + epsilon), sample standard deviation over graded siblings.

    A group without spread gives 0; a group of one gives 0 (preset "verl": R/(1 + epsilon)); a NaN reward gives 0.
    With `epsilon` None the preset's is used.
    """
    rule = get_preset(preset)
    epsilon = rule.epsilon if epsilon is None else epsilon
    value = reward_of_preset(reward, rule)
    count, mean, std = group_statistics(value, group)
    # torch.where instead of a product with 0: with epsilon 0 a group without spread gives 0 / 0.
    advantage = torch.where(std > 0, (value - mean) / (std + epsilon), torch.zeros_like(value))
    return with_edge_cases(advantage, value / (1 + epsilon), count, rule)


def dr_grpo_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit"
) -> Float[Tensor, " seq"]:
    """Dr.GRPO (2503.20783): A_i = R_i - mean_g over graded siblings; a group of one gives 0 (preset "verl": R), a NaN reward 0."""
    rule = get_preset(preset)
    value = reward_of_preset(reward, rule)
    count, mean, _ = group_statistics(value, group)
    return with_edge_cases(value - mean, value, count, rule)


def rloo_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit"
) -> Float[Tensor, " seq"]:
    """RLOO (2402.14740): A_i = R_i - mean_{j != i} R_j = G/(G-1) (R_i - mean_g), G the number of graded siblings.

    A group of one gives 0 (preset "verl": R), a NaN reward 0.
    """
    rule = get_preset(preset)
    value = reward_of_preset(reward, rule)
    count, mean, _ = group_statistics(value, group)
    return with_edge_cases(count / (count - 1).clamp(min=1) * (value - mean), value, count, rule)


def opo_advantage(
    reward: Float[Tensor, " seq"], length: Int[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit"
) -> Float[Tensor, " seq"]:
    """OPO (2505.23585): A_i = R_i - sum_j T_j R_j / sum_j T_j over graded siblings, T_j their loss tokens; no tokens in a group give 0.

    A group of one gives 0 (preset "verl": R), a NaN reward 0.
    """
    rule = get_preset(preset)
    value = reward_of_preset(reward, rule)
    tokens, baseline, _ = group_statistics(value, group, length)
    advantage = torch.where(tokens > 0, value - baseline, torch.zeros_like(value))
    return with_edge_cases(advantage, value, group_statistics(value, group).graded, rule)


def gpg_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit"
) -> Float[Tensor, " seq"]:
    """GPG (2504.02546): A_i = (B / max(1, B')) (R_i - mean_g), B graded responses in the batch, B' of them with a reward other than 0.

    A group of one gives 0 (preset "verl": R, with the same factor), a NaN reward 0.
    """
    value = reward_of_preset(reward, get_preset(preset))
    graded = ~value.isnan()
    rewarded = graded & (value != 0)
    boost = graded.sum(dtype=value.dtype) / rewarded.sum(dtype=value.dtype).clamp(min=1)
    return boost * dr_grpo_advantage(reward, group, preset=preset)


def pass_at_k_advantage(
    reward: Float[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    *,
    preset: PresetName = "tokencredit",
    normalize: bool = True,
    epsilon: float | None = None,
) -> Float[Tensor, " seq"]:
    """Pass@k policy optimisation (2503.19595): A_i = max(0, R_i - best sibling) / (std_g + epsilon); no division without `normalize`.

    Only a sole best response is credited. A shared best, a group without spread, a group of one (with every preset; verl refuses
    it) and a NaN reward give 0. With `epsilon` None the preset's is used.
    """
    rule = get_preset(preset)
    epsilon = rule.epsilon if epsilon is None else epsilon
    value = reward_of_preset(reward, rule)
    count, _, std = group_statistics(value, group)
    lead = (value - best_sibling(value, group)).clamp(min=0)
    if normalize:
        lead = torch.where(std > 0, lead / (std + epsilon), torch.zeros_like(lead))
    return with_edge_cases(lead, value, count, rule._replace(lone_response_keeps_reward=False))


def remax_advantage(reward: Float[Tensor, " seq"], greedy_score: Float[Tensor, " seq"]) -> Float[Tensor, " seq"]:
    """ReMax (2310.10505): A_i = R_i - score of the greedy response to the prompt; 0 if either is ungraded. Needs no siblings."""
    value = reward_of_preset(reward, PRESETS["tokencredit"])
    return torch.nan_to_num(value - greedy_score.to(value.dtype), nan=0.0)


def remax_stage(inputs: AdvantageInputs, state: State) -> AdvantageOutcome:
    """`remax_advantage` in the interface of advantage methods."""
    if inputs.greedy_score is None:
        raise ValueError("greedy_score is missing; remax compares with the policy's greedy response to each prompt")
    return AdvantageOutcome(remax_advantage(inputs.reward, inputs.greedy_score), state)


def c_rf_advantage(score: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, threshold: float = 0.0) -> Float[Tensor, " seq"]:
    """C-RF (2606.17250): A_i = +B/(2 B+) where the score is above threshold, else -B/(2 B-), so that both sides weigh the same.

    B graded responses, B+ above the threshold and B- not. The score is the verifier's: shaping must not turn a failure into a
    success. If one side is empty the other gets +1 or -1. `group` is not read. A NaN score gives 0.
    """
    value = reward_of_preset(score, PRESETS["tokencredit"])
    graded = ~value.isnan()
    success = graded & (value > threshold)
    failure = graded & ~success
    sides = 2 if success.any() and failure.any() else 1
    mass = graded.sum(dtype=value.dtype) / sides
    return mass / success.sum().clamp(min=1) * success - mass / failure.sum().clamp(min=1) * failure
