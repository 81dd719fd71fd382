"""What a token added to the value of its response, the value being what siblings that came through like places received (ours).

A place is where a token is about to be written. Sibling j says of place t of response i that it is worth A_j, with
weight w_itj in [0, 1], by the most alike of its own places; the own response is left out. The value after a token is that
of the siblings who wrote the same token at a like place, or the value of the next place, and then A_i itself after the last
token. Values are in units of the advantage, which inside a group is the reward, moved and scaled.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args
from uuid import uuid4

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.base import CreditInputs, CreditOutcome, State, scale_advantage
from tokencredit.credit.delta.algorithm import Reduce, this_rank_only

CELLS = 1 << 24
"""Pairs of places that are compared at once."""

After = Literal["token", "next"]
Likeness = Callable[[slice], Float[Tensor, "asked seq tok"]]
"""How alike the places in a run are to every place of the group, from 0 to 1; places are read row after row."""


class Siblings(NamedTuple):
    """The graded responses of one group, their tokens moved together to the left."""

    advantage: Float[Tensor, " seq"]
    length: Int[Tensor, " seq"]
    place: Int[Tensor, "seq tok"]
    """Where in the packed tokens of the batch each one stands; those beyond the length name the first."""

    @property
    def present(self) -> Bool[Tensor, "seq tok"]:
        return torch.arange(self.place.shape[1], device=self.place.device) < self.length[:, None]


class Rows:
    """Responses of one rank, and after `merge` of all: what a group's comparison needs, whichever rank a sibling lies on.

    Every rank finds its own part again by the name it gave it.
    """

    def __init__(self, parts: dict[str, dict[str, Tensor]]) -> None:
        self.parts = parts

    def merge(self, other: "Rows") -> "Rows":
        return Rows(self.parts | other.parts)

    def joined(self, name: str) -> Tensor:
        values = [part[name] for part in self.parts.values()]
        return torch.cat([value.to(values[0].device) for value in values])


class Weights(NamedTuple):
    before: Float[Tensor, "seq tok seq"]
    """w_itj of the place where the token is written: the most alike place of response j."""
    after: Float[Tensor, "seq tok seq"] | None
    """The same among the places of j at which it wrote the same token; None where places after the token are compared instead."""


def weights(siblings: Siblings, likeness: Likeness, tokens: Int[Tensor, " tok"] | None = None) -> Weights:
    """0 for the own response and at places that do not exist. `tokens` are those written at the packed places."""
    seq, tok = siblings.place.shape
    present, before, after = siblings.present, [], []
    written = None if tokens is None else tokens[siblings.place]
    step = max(1, CELLS // max(1, seq * tok))
    for start in range(0, seq * tok, step):
        run = slice(start, min(start + step, seq * tok))
        alike = likeness(run).where(present, 0.0)
        before.append(alike.amax(-1).double())
        if written is not None:
            after.append(alike.where(written.flatten()[run, None, None] == written, 0.0).amax(-1).double())
    others = present[..., None] & ~torch.eye(seq, dtype=torch.bool, device=present.device)[:, None, :]

    def whole(parts: list[Tensor]) -> Tensor:
        return torch.cat(parts).view(seq, tok, seq).where(others, 0.0)

    return Weights(whole(before), whole(after) if after else None)


class Gains(NamedTuple):
    gain: Float[Tensor, "seq tok"]
    """V after the token less V before it."""
    trust: Float[Tensor, "seq tok"]
    """l: the gain's share in the credit, from 0 to 1."""


def token_gains(siblings: Siblings, weight: Weights, *, shrinkage: float = 1.0) -> Gains:
    """V = sum_j w_j A_j / n before and after; trust = var A / (var A + shrinkage s2 u), u = 1 / n + 1 / n' - 2 sum_j w_j w'_j / (n n').

    s2 u is the variance of the gain where sibling j's word has the variance s2 / w: what both values share with a sibling cancels, and
    without a neighbour (n = 0) nothing is known and trust is 0. s2 is the mean of (A_i - V)^2 n / (n + 1) over the group's places; var A
    is the error of uniform credit. Where the place after the token is the next one, the last token's is the end: worth A_i, for sure.
    """
    advantage, present = siblings.advantage.double(), siblings.present
    own = advantage[:, None].expand_as(present)
    count, share, spread = _shares(weight.before)
    value, known = share @ advantage, count > 0
    if weight.after is None:
        last = present & ~torch.cat([present[:, 1:], torch.zeros_like(present[:, :1])], dim=1)
        after, common = (value.roll(-1, 1).where(~last, own), (share * share.roll(-1, 1)).sum(-1).where(~last, 0.0))
        unsure = spread + spread.roll(-1, 1).where(~last, 0.0) - 2 * common
    else:
        _, later_share, later_spread = _shares(weight.after)
        after, common = later_share @ advantage, (share * later_share).sum(-1)
        unsure = spread + later_spread - 2 * common
    noise = ((own - value).square() * count / (count + 1)).where(present & known, 0.0).sum() / (present & known).sum().clamp(min=1)
    signal = (advantage - advantage.mean()).square().mean()
    sure = unsure.isfinite() & present & (signal > 0)
    error = shrinkage * noise * unsure.where(sure, 0.0).clamp(min=0)
    trust = (signal / (signal + error).where(sure, 1.0)).where(sure, 0.0)
    return Gains((after - value).where(sure, 0.0), trust)


def _shares(weight: Float[Tensor, "seq tok seq"]) -> tuple[Tensor, Tensor, Tensor]:
    """The neighbours n, the share of each sibling in the value, and 1 / n."""
    count = weight.sum(-1)
    known = count > 0
    return count, weight / count.where(known, 1.0)[..., None], (1 / count.where(known, 1.0)).where(known, torch.inf)


def sibling_credit(
    inputs: CreditInputs,
    state: State,
    likeness: Callable[[Siblings, Rows], Likeness],
    evidence: dict[str, Tensor],
    *,
    after: After,
    shrinkage: float,
    normalize: bool,
    reduce: Reduce = this_rank_only,
) -> CreditOutcome:
    """a_it = A_i + trust (gain - A_i), given as the coefficient a_it / A_i, so that A_i = 0 receives nothing.

    `evidence` holds what `likeness` compares, one entry per token of the mask. With `normalize` the coefficients are scaled so that the
    mean of |a_it| over the batch is that of |A_i|.
    """
    if after not in get_args(After):
        raise ValueError(f"after is {after!r}; it must be one of {', '.join(get_args(After))}")
    graded = torch.ones_like(inputs.advantage, dtype=torch.bool) if inputs.score is None else ~inputs.score.isnan()
    name = uuid4().hex
    own = {"advantage": inputs.advantage.double(), "group": inputs.group, "graded": graded, "length": inputs.mask.sum(-1), **evidence}
    own |= {"written": inputs.tokens[inputs.mask]} if after == "token" else {}
    rows = reduce(Rows({name: own}))
    advantage, group, graded, length = (rows.joined(field) for field in ("advantage", "group", "graded", "length"))
    start = length.cumsum(0) - length
    coefficient = torch.ones(int(length.sum()), dtype=torch.float64, device=advantage.device)
    for number in group.unique():
        members = ((group == number) & graded & (length > 0)).nonzero()[:, 0]
        if len(members) < 2 or not advantage[members].any():
            continue
        siblings = _siblings(advantage[members], length[members], start[members])
        tokens = rows.joined("written") if after == "token" else None
        gain, trust = token_gains(siblings, weights(siblings, likeness(siblings, rows), tokens), shrinkage=shrinkage)
        scale = siblings.advantage.where(siblings.advantage != 0, 1.0)[:, None]
        blended = 1 + trust * (gain / scale - 1)
        present = siblings.present & (siblings.advantage != 0)[:, None]
        coefficient[siblings.place[present]] = blended[present]
    of_token = torch.repeat_interleave(advantage.abs(), length)
    if normalize:
        size = (coefficient.abs() * of_token).sum()
        coefficient = coefficient * (of_token.sum() / size if size > 0 else 1.0)
    first = list(rows.parts).index(name)
    before = sum(int(part["length"].sum()) for part in list(rows.parts.values())[:first])
    padded = torch.zeros_like(inputs.mask, dtype=torch.float64)
    padded[inputs.mask] = coefficient[before : before + int(own["length"].sum())].to(padded.device)
    return scale_advantage(padded, inputs, state)


def _siblings(advantage: Tensor, length: Tensor, start: Tensor) -> Siblings:
    column = torch.arange(int(length.max()), device=length.device)
    place = (start[:, None] + column).where(column < length[:, None], start[:, None])
    return Siblings(advantage, length, place)


def near_places(siblings: Siblings, run: slice, width: float | None) -> Float[Tensor, "asked #seq tok"] | float:
    """exp(-(t - s)^2 / (2 (width x longest)^2)) of the places in a run and the columns of a group; 1 without a width."""
    if width is None:
        return 1.0
    columns = siblings.place.shape[1]
    asked = torch.arange(run.start, run.stop, device=siblings.place.device) % columns
    apart = (asked[:, None] - torch.arange(columns, device=asked.device)).double() / (width * columns)
    return (-apart.square() / 2).exp()[:, None, :]
