"""The form every credit method takes: evidence about tokens and a state in, one number per token and the state out.

What a method carries from step to step, as JSON: a tensor in float32, small enough to be written into every checkpoint.
"""

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.features import FeatureSource
from tokencredit.types import Evidence, State


class CreditInputs(NamedTuple):
    advantage: Float[Tensor, " seq"]
    mask: Bool[Tensor, "seq tok"]
    group: Int[Tensor, " seq"]
    tokens: Int[Tensor, "seq tok"]
    logp: Float[Tensor, "seq tok"]
    entropy: Float[Tensor, "seq tok"]
    seed: int
    temperature: float = 1.0
    """Of the sampler: log-probs are those of logits / temperature."""
    hidden: Float[Tensor, "seq tok hid"] | FeatureSource | None = None
    """Input of the LM head at the position that predicts each token: padded, or those of the mask one after another."""
    head: Float[Tensor, "vocab hid"] | None = None
    """LM-head weight."""
    score: Float[Tensor, " seq"] | None = None
    """What the verifier said; NaN where it could not."""
    end_tokens: tuple[int, ...] = ()
    """Ids that end a response."""
    edited: Bool[Tensor, "seq tok"] | None = None
    """Tokens that a successful revision changed; True everywhere for responses without one."""
    prefix_value: Float[Tensor, "seq tok"] | None = None
    """Chance of success before each token; NaN where it was not estimated."""


class CreditOutcome(NamedTuple):
    credit: Float[Tensor, "seq tok"]
    coefficient: Float[Tensor, "seq tok"] | None
    state: State


class CreditMethod(NamedTuple):
    """A configured method: `assign(inputs, state)`, and the evidence that its config class declares."""

    assign: Callable[..., CreditOutcome]
    needs: frozenset[Evidence] = frozenset()


def scale_advantage(coefficient: Float[Tensor, "seq tok"], inputs: CreditInputs, state: State) -> CreditOutcome:
    """What every multiplicative method ends with: a_it = c_it A_i inside the mask, 0 outside."""
    coefficient = coefficient.to(inputs.advantage.dtype).where(inputs.mask, 0.0)
    return CreditOutcome(coefficient * inputs.advantage[:, None], coefficient, state)


MOST = 1 << 23
"""Numbers that are carried at most: 34 MB, a third more as text."""


def check_carried(shape: tuple[int, ...], what: str, advice: str) -> None:
    """Refuse before the first step what would not be carried after it."""
    count = math.prod(shape)
    if count > MOST:
        size = " x ".join(f"{side:,}" for side in shape)
        raise ValueError(
            f"{what} is {size} numbers ({4 * count / 1e6:,.0f} MB in every checkpoint), and at most {MOST:,} ({4 * MOST / 1e6:.0f} MB) "
            f"are carried from step to step; {advice}"
        )


def pack(tensor: Tensor) -> dict[str, Any]:
    values = tensor.detach().to("cpu", torch.float32).contiguous()
    return {"shape": list(values.shape), "float32": base64.b64encode(values.numpy().tobytes()).decode("ascii")}


def unpack(packed: Mapping[str, Any]) -> Tensor:
    """In float64, on the CPU."""
    return torch.frombuffer(bytearray(base64.b64decode(packed["float32"])), dtype=torch.float32).double().reshape(packed["shape"])
