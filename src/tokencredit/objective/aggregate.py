"""How token losses become one number: token weights here, the denominator in the plan. No loss counts tokens."""

from typing import get_args

from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.types import Aggregation


def token_weight(mask: Bool[Tensor, "seq tok"], length: Float[Tensor, " seq"], *, aggregation: Aggregation) -> Float[Tensor, "seq tok"]:
    """1 on every token of the mask; `sequence-mean` gives 1/T_i, so that every response weighs the same.

    `length` is T_i, the loss tokens of the whole response; an empty response weighs nothing.
    """
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"aggregation is {aggregation!r}; it must be one of {', '.join(get_args(Aggregation))}")
    weight = mask.to(length.dtype)
    return weight / length.clamp(min=1)[:, None] if aggregation == "sequence-mean" else weight
