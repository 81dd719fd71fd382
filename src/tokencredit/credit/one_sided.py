"""One side only: a control in which nothing can cancel."""

from typing import Literal, get_args

from tokencredit.credit.base import CreditInputs, CreditOutcome, State, scale_advantage

Side = Literal["positive", "negative"]


def one_sided_credit(inputs: CreditInputs, state: State, *, side: Side = "positive") -> CreditOutcome:
    """c_it = 1 where A_i has the sign of `side`, else 0; A_i = 0 lies on neither side."""
    if side not in get_args(Side):
        raise ValueError(f"side is {side!r}; it must be one of {', '.join(get_args(Side))}")
    credited = inputs.advantage > 0 if side == "positive" else inputs.advantage < 0
    return scale_advantage(credited[:, None].expand_as(inputs.mask).to(inputs.advantage.dtype), inputs, state)
