"""AdamW over the trainable parameters: torch's own, or one with stochastic rounding for weights kept in bfloat16."""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.train import TrainConfig
from tokencredit.forward.padded import trainable_parameters
from tokencredit.seeds import derive_seed

LOW_BITS = 16
"""bfloat16 is the upper half of a float32; these are the missing lower bits."""


def stochastic_round(value: Float[Tensor, "..."], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Round float32 to one of its two bfloat16 neighbours, the upper one with probability (value - lower) / (upper - lower).

    The expectation is the value itself. Floats of one sign are ordered like their bits, so a random number below 2^16 added to
    the bits carries into the upper half with exactly that probability; then the lower half is cut off. Values that are bfloat16
    or not finite stay. Beyond the largest bfloat16 the upper neighbour is infinity, as in rounding to nearest.
    """
    if value.dtype != torch.float32:
        raise ValueError(f"value is {value.dtype}; stochastic rounding takes float32")
    chance = torch.randint(0, 2**LOW_BITS, value.shape, dtype=torch.int32, device=value.device, generator=generator)
    upper_half = (value.contiguous().view(torch.int32) + chance) >> LOW_BITS
    # The bits of non-finite values are not ordered: adding to infinity could give a NaN.
    return upper_half.to(torch.int16).view(torch.bfloat16).where(value.isfinite(), value.bfloat16())


def make_optimizer(config: TrainConfig, model: torch.nn.Module) -> torch.optim.AdamW:
    chosen, trained = config.optimizer, list(trainable_parameters(model).values())
    knobs: dict[str, Any] = {
        "lr": chosen.learning_rate,
        "betas": (chosen.beta1, chosen.beta2),
        "weight_decay": chosen.weight_decay,
    }
    if config.weights != "bfloat16-stochastic" and trained[0].is_cuda:
        # Fused: every weight is read and written once. On a CPU all recorded results were made with the plain form.
        knobs["fused"] = True
    if config.weights == "bfloat16-stochastic":
        return StochasticAdamW(trained, seed=config.seed, **knobs)
    return torch.optim.AdamW(trained, **knobs)


class StochasticAdamW(torch.optim.AdamW):
    """AdamW with float32 moments and arithmetic that rounds new bfloat16 weights stochastically.

    Rounding to nearest drops every change of a bfloat16 weight below about 1/500 of it; stochastic rounding keeps each change in
    expectation. Weights of other dtypes are not rounded: for them this is torch's AdamW. The rounding follows from
    (seed, step count, parameter index), so a resumed run rounds exactly like an uninterrupted one.
    """

    def __init__(self, trained: list[torch.nn.Parameter], *, seed: int, **knobs: Any) -> None:
        super().__init__(trained, **knobs)
        self.seed = seed

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter that has a gradient."""
        assert closure is None, "the gradient is there already"
        index = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group, index)
                index += 1

    def _update(self, parameter: Tensor, group: dict[str, Any], index: int) -> None:
        state, kind = self.state[parameter], torch.promote_types(parameter.dtype, torch.float32)
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter, dtype=kind) for _ in range(2))
        state["step"] += 1
        count = int(state["step"])
        drawn = torch.Generator(device=parameter.device).manual_seed(derive_seed(self.seed, "rounding", count, index))
        tensors = (parameter, cast(Tensor, parameter.grad), state["exp_avg"], state["exp_avg_sq"])
        for weight, gradient, mean, square in zip(*(_slices(tensor) for tensor in tensors), strict=True):
            moved = _moved(weight.to(kind), gradient.to(kind), mean, square, group, count)
            weight.copy_(stochastic_round(moved, drawn) if weight.dtype == torch.bfloat16 else moved)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores moments in float32; torch would cast them to the dtype of the weights."""
        super().load_state_dict(state_dict)
        for index, parameter in enumerate(parameter for group in self.param_groups for parameter in group["params"]):
            for name in ("exp_avg", "exp_avg_sq"):
                if index in state_dict["state"]:
                    self.state[parameter][name] = state_dict["state"][index][name].to(parameter.device, copy=True)


CHUNK_NUMBERS = 2**24
"""Numbers of a parameter per chunk: float32 copies of a full embedding would cost what bfloat16 saves."""


def _slices(tensor: Tensor) -> tuple[Tensor, ...]:
    """Views that can be written to."""
    rows = torch.atleast_1d(tensor)
    return rows.split(max(1, CHUNK_NUMBERS * len(rows) // max(1, rows.numel())))


def _moved(weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, group: dict[str, Any], count: int) -> Tensor:
    """The weights after step `count`, counted from 1; both moments are moved in place."""
    beta1, beta2 = group["betas"]
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    divisor = (square.sqrt() / (1 - beta2**count) ** 0.5).add_(group["eps"])
    kept = weight * (1 - group["lr"] * group["weight_decay"])
    return kept.addcdiv_(mean, divisor, value=-group["lr"] / (1 - beta1**count))
