"""Dr.GRPO: the group-centred reward, not divided by its spread (2503.20783)."""

from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.preset import PresetName, comparable, preset_named, settled
from tokencredit.masked import group_statistics


def dr_grpo_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit"
) -> Float[Tensor, " seq"]:
    """A_i = R_i - mean_g over graded siblings; a group of one gives 0 (preset "verl": R), a NaN reward 0."""
    rule = preset_named(preset)
    value = comparable(reward, rule)
    count, mean, _ = group_statistics(value, group)
    return settled(value - mean, value, count, rule)
