"""AdamW over what is trained: torch's own, or one of ours for weights that are kept in bfloat16 and rounded by chance.

Stochastic rounding to bfloat16: up or down by chance, so that the expectation is the value itself.
"""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.train import TrainConfig
from tokencredit.forward.padded import trainable_parameters
from tokencredit.seeds import derive_seed

LOW_BITS = 16
"""What a bfloat16 lacks of a float32: the lower half of its bits."""


def stochastic_round(value: Float[Tensor, "..."], generator: torch.Generator) -> Float[Tensor, "..."]:
    """float32 to one of its two bfloat16 neighbours, the upper one with probability (value - lower) / (upper - lower).

    Floats of one sign are ordered as their bits are, so a random number below 2^16 added to the bits carries into the upper half
    with just that probability; then the lower half is cut off. A value that is a bfloat16 stays, and so does what is not finite.
    Beyond the largest bfloat16 the upper neighbour is infinity, as in rounding to nearest.
    """
    if value.dtype != torch.float32:
        raise ValueError(f"value is {value.dtype}; stochastic rounding takes float32")
    chance = torch.randint(0, 2**LOW_BITS, value.shape, dtype=torch.int32, device=value.device, generator=generator)
    upper_half = (value.contiguous().view(torch.int32) + chance) >> LOW_BITS
    # The bits of a number that is not finite are no place on a line: added to, a NaN could become one.
    return upper_half.to(torch.int16).view(torch.bfloat16).where(value.isfinite(), value.bfloat16())


def make_optimizer(config: TrainConfig, model: torch.nn.Module) -> torch.optim.AdamW:
    chosen, trained = config.optimizer, list(trainable_parameters(model).values())
    knobs: dict[str, Any] = {
        "lr": chosen.learning_rate,
        "betas": (chosen.beta1, chosen.beta2),
        "weight_decay": chosen.weight_decay,
    }
    if config.weights != "bfloat16-stochastic" and trained[0].is_cuda:
        # Every weight read and written once; on a CPU the plain form is what published numbers were made with.
        knobs["fused"] = True
    if config.weights == "bfloat16-stochastic":
        return StochasticAdamW(trained, seed=config.seed, **knobs)
    return torch.optim.AdamW(trained, **knobs)


class StochasticAdamW(torch.optim.AdamW):
    """AdamW that keeps its moments and does its sums in float32, and rounds new bfloat16 weights stochastically.

    Rounded to nearest, a bfloat16 weight forgets every change below about 1/500 of itself; so rounded, it takes each of them in
    expectation. Weights of other types are not rounded: then this is torch's AdamW. What chance decides follows from
    (seed, count of the step, place of the parameter), so a resumed run rounds as the one that never stopped.
    """

    def __init__(self, trained: list[torch.nn.Parameter], *, seed: int, **knobs: Any) -> None:
        super().__init__(trained, **knobs)
        self.seed = seed

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter that has a gradient."""
        assert closure is None, "the gradient is there already"
        place = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group, place)
                place += 1

    def _move(self, parameter: Tensor, group: dict[str, Any], place: int) -> None:
        state, kind = self.state[parameter], torch.promote_types(parameter.dtype, torch.float32)
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter, dtype=kind) for _ in range(2))
        state["step"] += 1
        count = int(state["step"])
        drawn = torch.Generator(device=parameter.device).manual_seed(derive_seed(self.seed, "rounding", count, place))
        whole = (parameter, cast(Tensor, parameter.grad), state["exp_avg"], state["exp_avg_sq"])
        for weight, gradient, mean, square in zip(*(_slices(tensor) for tensor in whole), strict=True):
            moved = _moved(weight.to(kind), gradient.to(kind), mean, square, group, count)
            weight.copy_(stochastic_round(moved, drawn) if weight.dtype == torch.bfloat16 else moved)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Moments stay as they are; torch would cast them to the type of the weights."""
        super().load_state_dict(state_dict)
        for place, parameter in enumerate(parameter for group in self.param_groups for parameter in group["params"]):
            for name in ("exp_avg", "exp_avg_sq"):
                if place in state_dict["state"]:
                    self.state[parameter][name] = state_dict["state"][place][name].to(parameter.device, copy=True)


AT_ONCE = 2**24
"""Numbers of a parameter that are worked on at a time: copies in float32 of a whole embedding would undo what bfloat16 saves."""


def _slices(tensor: Tensor) -> tuple[Tensor, ...]:
    """Views that can be written to."""
    rows = torch.atleast_1d(tensor)
    return rows.split(max(1, AT_ONCE * len(rows) // max(1, rows.numel())))


def _moved(weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, group: dict[str, Any], count: int) -> Tensor:
    """The weights after step `count`, counted from 1; both moments are moved in place."""
    beta1, beta2 = group["betas"]
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    divisor = (square.sqrt() / (1 - beta2**count) ** 0.5).add_(group["eps"])
    kept = weight * (1 - group["lr"] * group["weight_decay"])
    return kept.addcdiv_(mean, divisor, value=-group["lr"] / (1 - beta1**count))
