"""The interface of credit methods: `CreditInputs` and a JSON state in, `CreditOutcome` out; and tensors stored in such a state."""

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.types import Evidence, FeatureSource, State


class CreditInputs(NamedTuple):
    """One batch of responses with the evidence that a method may use."""

    advantage: Float[Tensor, " seq"]
    mask: Bool[Tensor, "seq tok"]
    group: Int[Tensor, " seq"]
    tokens: Int[Tensor, "seq tok"]
    logp: Float[Tensor, "seq tok"]
    entropy: Float[Tensor, "seq tok"]
    seed: int
    temperature: float = 1.0
    """The sampling temperature: log-probs are those of logits / temperature."""
    hidden: Float[Tensor, "seq tok hid"] | FeatureSource | None = None
    """Input of the LM head at the position that predicts each token: padded, or packed (the mask's tokens only)."""
    head: Float[Tensor, "vocab hid"] | None = None
    """LM-head weight."""
    score: Float[Tensor, " seq"] | None = None
    """The verifier's score; NaN for an ungraded response."""
    end_tokens: tuple[int, ...] = ()
    """Token ids that end a response."""
    edited: Bool[Tensor, "seq tok"] | None = None
    """Tokens that a successful revision changed; True everywhere in a response without one."""
    prefix_value: Float[Tensor, "seq tok"] | None = None
    """Probability of success before each token; NaN where it was not estimated."""


class CreditOutcome(NamedTuple):
    credit: Float[Tensor, "seq tok"]
    coefficient: Float[Tensor, "seq tok"] | None
    state: State


class CreditMethod(NamedTuple):
    """A configured method: `assign(inputs, state)`, and the evidence that its config class declares."""

    assign: Callable[..., CreditOutcome]
    needs: frozenset[Evidence] = frozenset()


def scale_advantage(coefficient: Float[Tensor, "seq tok"], inputs: CreditInputs, state: State) -> CreditOutcome:
    """The last step of every multiplicative method: a_it = c_it A_i inside the mask, 0 outside."""
    coefficient = coefficient.to(inputs.advantage.dtype).where(inputs.mask, 0.0)
    return CreditOutcome(coefficient * inputs.advantage[:, None], coefficient, state)


MAX_STATE_NUMBERS = 1 << 23
"""Limit of a tensor kept in the state, which every checkpoint holds: 34 MB, a third more as text."""


def check_state_size(shape: tuple[int, ...], what: str, advice: str) -> None:
    """Raise before the first step if the state could not hold a tensor of this shape after it."""
    count = math.prod(shape)
    if count > MAX_STATE_NUMBERS:
        size = " x ".join(f"{length:,}" for length in shape)
        raise ValueError(
            f"{what} is {size} numbers ({4 * count / 1e6:,.0f} MB in every checkpoint), and at most {MAX_STATE_NUMBERS:,} "
            f"({4 * MAX_STATE_NUMBERS / 1e6:.0f} MB) are carried from step to step; {advice}"
        )


def encode_tensor(tensor: Tensor) -> dict[str, Any]:
    """A tensor as JSON, in float32."""
    values = tensor.detach().to("cpu", torch.float32).contiguous()
    return {"shape": list(values.shape), "float32": base64.b64encode(values.numpy().tobytes()).decode("ascii")}


def decode_tensor(encoded: Mapping[str, Any]) -> Tensor:
    """The tensor behind `encode_tensor`'s JSON, in float64 on the CPU."""
    return torch.frombuffer(bytearray(base64.b64decode(encoded["float32"])), dtype=torch.float32).double().reshape(encoded["shape"])
