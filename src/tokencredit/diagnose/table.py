"""The tokens a diagnosis looks at: one flat entry per response token, in the order of the token file."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """Which optimizer step of the plan the response was in; -1 for none."""

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in self.__dataclass_fields__}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"token table has columns of lengths {lengths}; give one entry per token in each")

    def __len__(self) -> int:
        return len(self.row)

    @property
    def side(self) -> Int[Tensor, " tok"]:
        """+1 for tokens of responses with positive advantage, -1 with negative, 0 for the rest."""
        return self.advantage.sign().long()

    @property
    def probability(self) -> Float[Tensor, " tok"]:
        return self.logp.exp()


def token_table(
    credited: Credited, plan: StepPlan, *, text: Sequence[Sequence[str]], token_class: Sequence[Sequence[str]], rows: Tensor | None = None
) -> TokenTable:
    """Flatten credited rollouts, or the given rows of them; `text` and `token_class` hold a sequence per response chosen."""
    rollouts = credited.rollouts
    rows = torch.arange(len(rollouts.prompts), device=rollouts.mask.device) if rows is None else rows
    mask = rollouts.mask[rows]
    chosen, position = mask.nonzero(as_tuple=True)
    row = rows[chosen]
    step_of_row = torch.full((plan.rows,), -1, device=row.device)
    for number, planned in enumerate(plan.steps):
        step_of_row[list(planned.rows)] = number
    return TokenTable(
        row=row,
        group=rollouts.group[row],
        position=position,
        token=rollouts.tokens[row, position],
        text=tuple(piece for pieces in text for piece in pieces),
        token_class=tuple(name for names in token_class for name in names),
        logp=credited.old_logp[row, position],
        entropy=credited.entropy[row, position],
        credit=credited.credit[row, position],
        advantage=credited.advantage[row],
        score=credited.scored.score[row],
        optimizer_step=step_of_row[row],
    )
