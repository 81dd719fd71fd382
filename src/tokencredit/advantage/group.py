"""GRPO: how many group standard deviations a response lies above its siblings (DeepSeekMath, 2402.03300).

Dr.GRPO: the group-centred reward, not divided by its spread (2503.20783).

RLOO: the reward minus the mean of the other responses to the prompt (2402.14740).

OPO: the reward minus the mean of its group, weighted by length (2505.23585).

GPG: the group-centred reward, larger the fewer responses of the batch are rewarded (2504.02546).

Pass@k policy optimisation: only the best response of a group is credited, by its lead (2503.19595).

ReMax: the reward minus that of the policy's greedy response to the same prompt (2310.10505).

C-RF: plus or minus by outcome, the two sides of the batch weighing the same (2606.17250).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.base import PRESETS, AdvantageInputs, AdvantageOutcome, PresetName, comparable, preset_named, settled
from tokencredit.masked import best_sibling, group_statistics
from tokencredit.types import State


def grpo_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit", epsilon: float | None = None
) -> Float[Tensor, " seq"]:
    """A_i = (R_i - mean_g) / (std_g + epsilon), sample standard deviation over graded siblings.

    A group without spread gives 0; a group of one gives 0 (preset "verl": R/(1 + epsilon)); a NaN reward gives 0.
    `epsilon` None takes the preset's.
    """
    rule = preset_named(preset)
    epsilon = rule.epsilon if epsilon is None else epsilon
    value = comparable(reward, rule)
    count, mean, std = group_statistics(value, group)
    # Chosen, not multiplied by 0: with epsilon 0 the division is 0 / 0 where there is no spread.
    advantage = torch.where(std > 0, (value - mean) / (std + epsilon), torch.zeros_like(value))
    return settled(advantage, value / (1 + epsilon), count, rule)


def dr_grpo_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit"
) -> Float[Tensor, " seq"]:
    """A_i = R_i - mean_g over graded siblings; a group of one gives 0 (preset "verl": R), a NaN reward 0."""
    rule = preset_named(preset)
    value = comparable(reward, rule)
    count, mean, _ = group_statistics(value, group)
    return settled(value - mean, value, count, rule)


def rloo_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit"
) -> Float[Tensor, " seq"]:
    """A_i = R_i - mean_{j != i} R_j = G/(G-1) (R_i - mean_g), G counting graded siblings.

    A group of one gives 0 (preset "verl": R), a NaN reward 0.
    """
    rule = preset_named(preset)
    value = comparable(reward, rule)
    count, mean, _ = group_statistics(value, group)
    return settled(count / (count - 1).clamp(min=1) * (value - mean), value, count, rule)


def opo_advantage(
    reward: Float[Tensor, " seq"], length: Int[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit"
) -> Float[Tensor, " seq"]:
    """A_i = R_i - sum_j T_j R_j / sum_j T_j over graded siblings; a group without any token gives 0.

    A group of one gives 0 (preset "verl": R), a NaN reward 0.
    """
    rule = preset_named(preset)
    value = comparable(reward, rule)
    tokens, baseline, _ = group_statistics(value, group, length)
    advantage = torch.where(tokens > 0, value - baseline, torch.zeros_like(value))
    return settled(advantage, value, group_statistics(value, group).graded, rule)


def gpg_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit"
) -> Float[Tensor, " seq"]:
    """A_i = (B / max(1, B')) (R_i - mean_g): B graded responses in the batch, B' of them with a reward other than 0.

    A group of one gives 0 (preset "verl": R, scaled alike), a NaN reward 0.
    """
    value = comparable(reward, preset_named(preset))
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
    """A_i = max(0, R_i - best sibling) / (std_g + epsilon), undivided without `normalize`: 0 for all but a sole best.

    A shared best, a group without spread, a group of one (under every preset: verl refuses it) and a NaN reward give 0.
    `epsilon` None takes the preset's.
    """
    rule = preset_named(preset)
    epsilon = rule.epsilon if epsilon is None else epsilon
    value = comparable(reward, rule)
    count, _, std = group_statistics(value, group)
    lead = (value - best_sibling(value, group)).clamp(min=0)
    if normalize:
        lead = torch.where(std > 0, lead / (std + epsilon), torch.zeros_like(lead))
    return settled(lead, value, count, rule._replace(lone_response_keeps_reward=False))


def remax_advantage(reward: Float[Tensor, " seq"], greedy_score: Float[Tensor, " seq"]) -> Float[Tensor, " seq"]:
    """A_i = R_i - score of the greedy response; 0 where either could not be graded. Needs no siblings."""
    value = comparable(reward, PRESETS["tokencredit"])
    return torch.nan_to_num(value - greedy_score.to(value.dtype), nan=0.0)


def remax_stage(inputs: AdvantageInputs, state: State) -> AdvantageOutcome:
    if inputs.greedy_score is None:
        raise ValueError("greedy_score is missing; remax compares with the policy's greedy response to each prompt")
    return AdvantageOutcome(remax_advantage(inputs.reward, inputs.greedy_score), state)


def c_rf_advantage(score: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, threshold: float = 0.0) -> Float[Tensor, " seq"]:
    """A_i = +B/(2 B+) where the score is above threshold, -B/(2 B-) elsewhere; B graded responses, B+ and B- on either side.

    The score is the verifier's: shaping must not turn a failure into a success. Where one side is missing the other gets
    +1 or -1. `group` is not read. A NaN score gives 0.
    """
    value = comparable(score, PRESETS["tokencredit"])
    graded = ~value.isnan()
    success = graded & (value > threshold)
    failure = graded & ~success
    sides = 2 if success.any() and failure.any() else 1
    mass = graded.sum(dtype=value.dtype) / sides
    return mass / success.sum().clamp(min=1) * success - mass / failure.sum().clamp(min=1) * failure
