"""REINFORCE++: the reward whitened over the batch, without groups (2501.03262)."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.preset import PresetName, comparable, preset_named
from tokencredit.advantage.whitened import whitened


def reinforce_pp_advantage(
    reward: Float[Tensor, " seq"],
    length: Int[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    *,
    over: Literal["tokens", "responses"] = "tokens",
    preset: PresetName = "tokencredit",
    epsilon: float = 1e-8,
) -> Float[Tensor, " seq"]:
    """A_i = (R_i - m) / sqrt(v + epsilon), m and v (n - 1) over all tokens, each carrying its response's reward.

    `over` "responses" counts each response once. `group` is not read. A batch without spread gives 0, a NaN reward 0
    (preset "verl": it is a reward of 0), and over tokens so does a response without any.
    """
    if over not in ("tokens", "responses"):
        raise ValueError(f"over is {over!r}; it must be tokens or responses")
    value = comparable(reward, preset_named(preset))
    return whitened(value, length if over == "tokens" else torch.ones_like(length), epsilon=epsilon)
