"""First-order effect of an update: the change of every token's log-prob for a small change of the weights.

    predicted_t = <grad log pi(o_t), direction>

One pass with one forward-mode product (jvp) per direction gives it for all tokens. Where an operation of the model has no
forward-mode derivative, a central difference uses two passes instead; `Prediction.method` names the method used.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from tokencredit.batching.microbatch import cut_micro_batches
from tokencredit.forward.padded import response_extent, response_logits, row_cost, trainable_parameters
from tokencredit.kernels import token_logp
from tokencredit.types import Rollouts

Direction = Mapping[str, Tensor]
"""A weight change for each trainable parameter, by its name in `named_parameters`."""

Method = Literal["jvp", "difference"]

DIFFERENCE_SIZE = 1e-3
"""Norm of the step of a central difference, relative to the norm of all trainable weights."""


class Prediction(NamedTuple):
    change: dict[str, Float[Tensor, "seq tok"]]
    """Change of every token's log-prob, per direction; 0 outside the mask."""
    method: Method


class _TokenLogp(torch.nn.Module):
    """Model and log-prob as one module, because `functional_call` swaps the parameters of a module."""

    def __init__(self, model: PreTrainedModel, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, prompts: list[tuple[int, ...]], tokens: Tensor) -> Tensor:
        return token_logp(response_logits(self.model, prompts, tokens).logits, tokens, temperature=self.temperature)


@contextmanager
def plain_attention(model: PreTrainedModel) -> Iterator[None]:
    """Use unfused attention, because fused attention has no forward-mode derivative.

    torch's math backend is preferred to transformers' eager attention, whose softmax is float32 whatever the dtype of the weights.
    """
    before = model.config._attn_implementation or "eager"
    if before not in ("eager", "sdpa"):
        model.set_attn_implementation("sdpa")
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        if before not in ("eager", "sdpa"):
            model.set_attn_implementation(before)


def norm_of(direction: Direction) -> float:
    return float(torch.stack([part.double().square().sum() for part in direction.values()]).sum().sqrt())


@torch.no_grad()
def predicted_change(
    model: PreTrainedModel,
    rollouts: Rollouts,
    directions: Mapping[str, Direction],
    *,
    temperature: float,
    max_tokens: int,
    method: Method | None = None,
) -> Prediction:
    """The first-order change of every response token's log-prob along each direction; `method` None tries jvp first."""
    if method is None:
        try:
            return predicted_change(model, rollouts, directions, temperature=temperature, max_tokens=max_tokens, method="jvp")
        except (NotImplementedError, RuntimeError) as problem:
            if not _lacks_forward_mode(problem):
                raise
            method = "difference"
    known = trainable_parameters(model)
    for name, direction in directions.items():
        if direction.keys() != known.keys():
            raise ValueError(f"direction {name!r} has {len(direction)} parameters but the model {len(known)}; give one change for each")
    module = _TokenLogp(model, temperature)
    weights = {f"model.{name}": value.detach() for name, value in known.items()}
    # All directions share one pass, so they share the token budget too.
    stacked = {
        key: torch.stack([direction[key.removeprefix("model.")].to(value) for direction in directions.values()])
        for key, value in weights.items()
    }
    mask = rollouts.mask
    change = torch.zeros(len(directions), *mask.shape, dtype=torch.promote_types(model.dtype, torch.float32), device=mask.device)
    extent, cost = response_extent(mask), row_cost(rollouts)
    budget = max(max_tokens // len(directions), max(cost))
    with plain_attention(model):
        for rows in cut_micro_batches(range(len(cost)), cost, max_tokens=budget):
            index = torch.tensor(rows, device=mask.device)
            width = int(extent[index].max())
            if width == 0:
                continue
            given = ([rollouts.prompts[row] for row in rows], rollouts.tokens[index, :width])
            change[:, index, :width] = (_forward_mode if method == "jvp" else _difference)(module, weights, stacked, given)
    return Prediction(dict(zip(directions, change.where(mask, 0.0), strict=True)), method)


def _lacks_forward_mode(problem: Exception) -> bool:
    return any(word in str(problem) for word in ("forward AD", "forward-mode", "jvp", "vmap"))


def _forward_mode(module: _TokenLogp, weights: dict[str, Tensor], stacked: dict[str, Tensor], given: Any) -> Tensor:
    def along(tangent: dict[str, Tensor]) -> Tensor:
        return jvp(lambda at: functional_call(module, at, given), (weights,), (tangent,))[1]

    return vmap(along)(stacked)


def _difference(module: _TokenLogp, weights: dict[str, Tensor], stacked: dict[str, Tensor], given: Any) -> Tensor:
    """(f(w + s d) - f(w - s d)) / 2s, with s d of one fixed norm, so that rounding and curvature both stay small."""
    found: list[Tensor] = []
    for number in range(len(next(iter(stacked.values())))):
        tangent = {name: value[number] for name, value in stacked.items()}
        size = norm_of(tangent)
        scale = DIFFERENCE_SIZE * norm_of(weights) / size if size else 0.0
        after, before = (
            functional_call(module, {name: value + sign * scale * tangent[name] for name, value in weights.items()}, given)
            for sign in (1, -1)
        )
        found.append((after - before) / (2 * scale) if size else torch.zeros_like(after))
    return torch.stack(found)
