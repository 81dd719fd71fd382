"""AdamW's change of the weights as a sum of parts: it is linear in the gradient once its divisor is known.

change = -rate / bias1 (1 - beta1) clip (g+ + g-) / (sqrt(v / bias2) + eps)   +   what momentum and decay add
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokencredit.forward.first_order import Direction


def clip_factor(norm: float, gradient_clip: float) -> float:
    """What torch's clip_grad_norm_ multiplies a gradient of this norm by."""
    return min(1.0, gradient_clip / (norm + 1e-6))


@torch.no_grad()
def adamw_part(optimizer: torch.optim.AdamW, named: Mapping[str, Tensor], gradient: Direction, *, clip: float) -> dict[str, Tensor]:
    """The part of the step just taken that came from `gradient`; `named` are the optimizer's own parameters."""
    owner = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    part: dict[str, Tensor] = {}
    for name, parameter in named.items():
        group, state = owner[id(parameter)], optimizer.state[parameter]
        beta1, beta2 = group["betas"]
        count = float(state["step"])
        divisor = (state["exp_avg_sq"] / (1 - beta2**count)).sqrt() + group["eps"]
        part[name] = -group["lr"] * (1 - beta1) / (1 - beta1**count) * clip * gradient[name] / divisor
    return part
