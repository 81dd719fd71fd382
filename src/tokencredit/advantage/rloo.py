"""RLOO: the reward minus the mean of the other responses to the prompt (2402.14740)."""

from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.preset import PresetName, comparable, preset_named, settled
from tokencredit.masked import group_statistics


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
