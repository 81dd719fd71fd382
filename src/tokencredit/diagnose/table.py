"""The observed tokens of a diagnosis: one flat entry per response token, in the order of the token file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.types import Credited, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTable:
    row: Int[Tensor, " tok"]
    group: Int[Tensor, " tok"]
    position: Int[Tensor, " tok"]
    token: Int[Tensor, " tok"]
    text: tuple[str, ...]
    token_class: tuple[str, ...]
    logp: Float[Tensor, " tok"]
    """Before the update, as `entropy`."""
    entropy: Float[Tensor, " tok"]
    credit: Float[Tensor, " tok"]
    advantage: Float[Tensor, " tok"]
    """Of the token's response, as `score`."""
    score: Float[Tensor, " tok"]
    optimizer_step: Int[Tensor, " tok"]
    """Index of the response's optimizer step in the plan; -1 for none."""

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in self.__dataclass_fields__}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"token table has columns of lengths {lengths}; give one entry per token in each")

    def __len__(self) -> int:
        return len(self.row)

    def select(self, index: Int[Tensor, " chosen"]) -> "TokenTable":
        """The tokens at these indices, in this order."""
        places = index.tolist()
        chosen: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            column = getattr(self, name)
            chosen[name] = column[index] if isinstance(column, Tensor) else tuple(column[at] for at in places)
        return TokenTable(**chosen)

    @property
    def side(self) -> Int[Tensor, " tok"]:
        """+1 for tokens of responses with positive advantage, -1 with negative, 0 for the rest."""
        return self.advantage.sign().long()

    @property
    def probability(self) -> Float[Tensor, " tok"]:
        return self.logp.exp()


def step_of_each_row(plan: StepPlan) -> Int[Tensor, " seq"]:
    """Index of each row's optimizer step in the plan; -1 for none."""
    found = torch.full((plan.rows,), -1)
    for number, planned in enumerate(plan.steps):
        found[list(planned.rows)] = number
    return found


def token_table(credited: Credited, plan: StepPlan, *, text: Sequence[str], token_class: Sequence[str]) -> TokenTable:
    """Flatten credited rollouts onto the CPU; `text` and `token_class` hold an entry per sampled token, row by row."""
    rollouts = credited.rollouts
    row, position = rollouts.mask.cpu().nonzero(as_tuple=True)
    return TokenTable(
        row=row,
        group=rollouts.group.cpu()[row],
        position=position,
        token=rollouts.tokens.cpu()[row, position],
        text=tuple(text),
        token_class=tuple(token_class),
        logp=credited.old_logp.cpu()[row, position],
        entropy=credited.entropy.cpu()[row, position],
        credit=credited.credit.cpu()[row, position],
        advantage=credited.advantage.cpu()[row],
        score=credited.scored.score.cpu()[row],
        optimizer_step=step_of_each_row(plan)[row],
    )
