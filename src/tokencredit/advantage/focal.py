"""The advantage that FADE and its static probes share: weighted by how hard the prompt is, and by sign (2607.01490)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.preset import PRESETS, comparable, settled
from tokencredit.masked import group_statistics


def focal_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, alpha: float = 1.0, delta: float = 1.0
) -> Float[Tensor, " seq"]:
    """A_i = q^(alpha - 1) (R_i - mean_g), divided by delta where R_i < mean_g;  q = max(0, 1 - mean_g).

    q = 0 weighs 0, but 0^0 is 1: alpha 1 and delta 1 are Dr.GRPO to the bit. Below alpha 1 the power has a pole at q = 0,
    where the mass q^alpha vanishes, so there too 0. A group of one and a NaN reward give 0.
    """
    ours = PRESETS["tokencredit"]
    value = comparable(reward, ours)
    count, mean, _ = group_statistics(value, group)
    unsolved = 1 - mean
    # A mean that is 1 but for rounding is 1; beside the pole the rounding would decide the weight.
    solved = unsolved <= 4 * torch.finfo(value.dtype).eps
    focus = torch.where(solved, torch.full_like(mean, float(alpha == 1)), unsolved.pow(alpha - 1))
    centred = value - mean
    signed = torch.where(value < mean, centred / delta, centred)
    return settled(focus * signed, value, count, ours)
