"""Sibling credit (ours), the part that both methods share: estimate a value before and after each token from the group's responses.

A position is where a token is about to be sampled. Its value is the mean advantage of the siblings that passed a similar position,
each weighted by its most similar position.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args
from uuid import uuid4

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.base import CreditInputs, CreditOutcome, State, scale_advantage
from tokencredit.credit.delta.algorithm import Reduce, this_rank_only

MAX_PAIRS = 1 << 24
"""Pairs of positions compared in one block."""

After = Literal["token", "next"]
Similarity = Callable[[slice], Float[Tensor, "query seq tok"]]
"""Similarity in [0, 1] of the positions in a slice to every position of the group; positions are numbered row by row."""


class Siblings(NamedTuple):
    """The graded responses of one group; each row holds the response's tokens without gaps, padded on the right."""

    advantage: Float[Tensor, " seq"]
    length: Int[Tensor, " seq"]
    packed_index: Int[Tensor, "seq tok"]
    """Index of each token among the batch's packed tokens; padding repeats the index of the first."""

    @property
    def present(self) -> Bool[Tensor, "seq tok"]:
        return torch.arange(self.packed_index.shape[1], device=self.packed_index.device) < self.length[:, None]


class SharedResponses:
    """Tensors of one rank's responses, and after `merge` of all ranks': the siblings of a response may lie on another rank.

    `by_rank` maps a name, unique per rank, to that rank's tensors, so that a rank finds its responses again after the merge.
    """

    def __init__(self, by_rank: dict[str, dict[str, Tensor]]) -> None:
        self.by_rank = by_rank

    def merge(self, other: "SharedResponses") -> "SharedResponses":
        return SharedResponses(self.by_rank | other.by_rank)

    def joined(self, name: str) -> Tensor:
        values = [tensors[name] for tensors in self.by_rank.values()]
        return torch.cat([value.to(values[0].device) for value in values])


class NeighbourWeights(NamedTuple):
    before: Float[Tensor, "seq tok seq"]
    """w_itj at the position before the token: the largest similarity to any position of response j."""
    after: Float[Tensor, "seq tok seq"] | None
    """The same over those positions of j at which j sampled the same token; None if the next position is compared instead."""


def neighbour_weights(siblings: Siblings, similarity: Similarity, tokens: Int[Tensor, " tok"] | None = None) -> NeighbourWeights:
    """w_itj = max over s of similarity(t of i, s of j); 0 for j = i and in padding. `tokens` are the packed tokens of the batch."""
    seq, tok = siblings.packed_index.shape
    present, before, after = siblings.present, [], []
    written = None if tokens is None else tokens[siblings.packed_index]
    step = max(1, MAX_PAIRS // max(1, seq * tok))
    for start in range(0, seq * tok, step):
        run = slice(start, min(start + step, seq * tok))
        similar = similarity(run).where(present, 0.0)
        before.append(similar.amax(-1).double())
        if written is not None:
            after.append(similar.where(written.flatten()[run, None, None] == written, 0.0).amax(-1).double())
    others = present[..., None] & ~torch.eye(seq, dtype=torch.bool, device=present.device)[:, None, :]

    def of_group(blocks: list[Tensor]) -> Tensor:
        return torch.cat(blocks).view(seq, tok, seq).where(others, 0.0)

    return NeighbourWeights(of_group(before), of_group(after) if after else None)


class Gains(NamedTuple):
    gain: Float[Tensor, "seq tok"]
    """V after the token minus V before it."""
    trust: Float[Tensor, "seq tok"]
    """l in [0, 1]: weight of the gain in the credit."""


def token_gains(siblings: Siblings, weight: NeighbourWeights, *, shrinkage: float = 1.0) -> Gains:
    """V = sum_j w_j A_j / n before and after; trust = var A / (var A + shrinkage s2 u), u = 1 / n + 1 / n' - 2 sum_j w_j w'_j / (n n').

    n = sum_j w_j counts the neighbours before the token, n' (with w') those after it. s2 u is the variance of the gain if sibling j's
    advantage has variance s2 / w_j as an estimate of the value; a sibling that both values share cancels. s2 is the mean of
    (A_i - V)^2 n / (n + 1) over the group's positions; var A is the error of uniform credit. Without a neighbour (n = 0 or n' = 0)
    trust is 0. If the value after a token is that of the next position, the value after the last token is A_i, without error.
    """
    advantage, present = siblings.advantage.double(), siblings.present
    outcome = advantage[:, None].expand_as(present)
    count, share, spread = _shares(weight.before)
    value, known = share @ advantage, count > 0
    if weight.after is None:
        last = present & ~torch.cat([present[:, 1:], torch.zeros_like(present[:, :1])], dim=1)
        after, common = (value.roll(-1, 1).where(~last, outcome), (share * share.roll(-1, 1)).sum(-1).where(~last, 0.0))
        unsure = spread + spread.roll(-1, 1).where(~last, 0.0) - 2 * common
    else:
        _, later_share, later_spread = _shares(weight.after)
        after, common = later_share @ advantage, (share * later_share).sum(-1)
        unsure = spread + later_spread - 2 * common
    noise = ((outcome - value).square() * count / (count + 1)).where(present & known, 0.0).sum() / (present & known).sum().clamp(min=1)
    signal = (advantage - advantage.mean()).square().mean()
    sure = unsure.isfinite() & present & (signal > 0)
    error = shrinkage * noise * unsure.where(sure, 0.0).clamp(min=0)
    trust = (signal / (signal + error).where(sure, 1.0)).where(sure, 0.0)
    return Gains((after - value).where(sure, 0.0), trust)


def _shares(weight: Float[Tensor, "seq tok seq"]) -> tuple[Tensor, Tensor, Tensor]:
    """n, the share w_j / n of each sibling in the value, and 1 / n (infinite without a neighbour)."""
    count = weight.sum(-1)
    known = count > 0
    return count, weight / count.where(known, 1.0)[..., None], (1 / count.where(known, 1.0)).where(known, torch.inf)


def sibling_credit(
    inputs: CreditInputs,
    state: State,
    similarity: Callable[[Siblings, SharedResponses], Similarity],
    evidence: dict[str, Tensor],
    *,
    after: After,
    shrinkage: float,
    normalize: bool,
    reduce: Reduce = this_rank_only,
) -> CreditOutcome:
    """a_it = A_i + trust (gain - A_i), computed as the coefficient a_it / A_i, so that A_i = 0 gives 0.

    `evidence` holds the tensors that `similarity` compares, one entry per token of the mask. Values are in units of the advantage,
    which inside a group is the reward, shifted and scaled. `after` "token" takes the value after a token from the siblings that
    sampled the same token at a similar position, "next" from the next position. With `normalize` the coefficients are scaled so
    that the mean of |a_it| over the batch is that of |A_i|. Uniform credit: ungraded responses, groups with fewer than two
    non-empty graded responses, and groups whose advantages are all 0. `reduce` merges the responses of all ranks.
    """
    if after not in get_args(After):
        raise ValueError(f"after is {after!r}; it must be one of {', '.join(get_args(After))}")
    graded = torch.ones_like(inputs.advantage, dtype=torch.bool) if inputs.score is None else ~inputs.score.isnan()
    this_rank = uuid4().hex
    local = {"advantage": inputs.advantage.double(), "group": inputs.group, "graded": graded, "length": inputs.mask.sum(-1), **evidence}
    local |= {"written": inputs.tokens[inputs.mask]} if after == "token" else {}
    responses = reduce(SharedResponses({this_rank: local}))
    advantage, group, graded, length = (responses.joined(field) for field in ("advantage", "group", "graded", "length"))
    start = length.cumsum(0) - length
    coefficient = torch.ones(int(length.sum()), dtype=torch.float64, device=advantage.device)
    for name in group.unique():
        members = ((group == name) & graded & (length > 0)).nonzero()[:, 0]
        if len(members) < 2 or not advantage[members].any():
            continue
        siblings = _siblings(advantage[members], length[members], start[members])
        tokens = responses.joined("written") if after == "token" else None
        gain, trust = token_gains(siblings, neighbour_weights(siblings, similarity(siblings, responses), tokens), shrinkage=shrinkage)
        scale = siblings.advantage.where(siblings.advantage != 0, 1.0)[:, None]
        blended = 1 + trust * (gain / scale - 1)
        present = siblings.present & (siblings.advantage != 0)[:, None]
        coefficient[siblings.packed_index[present]] = blended[present]
    of_token = torch.repeat_interleave(advantage.abs(), length)
    if normalize:
        size = (coefficient.abs() * of_token).sum()
        coefficient = coefficient * (of_token.sum() / size if size > 0 else 1.0)
    first = list(responses.by_rank).index(this_rank)
    before = sum(int(tensors["length"].sum()) for tensors in list(responses.by_rank.values())[:first])
    padded = torch.zeros_like(inputs.mask, dtype=torch.float64)
    padded[inputs.mask] = coefficient[before : before + int(local["length"].sum())].to(padded.device)
    return scale_advantage(padded, inputs, state)


def _siblings(advantage: Tensor, length: Tensor, start: Tensor) -> Siblings:
    column = torch.arange(int(length.max()), device=length.device)
    packed_index = (start[:, None] + column).where(column < length[:, None], start[:, None])
    return Siblings(advantage, length, packed_index)


def position_similarity(siblings: Siblings, run: slice, width: float | None) -> Float[Tensor, "query #seq tok"] | float:
    """exp(-(t - s)^2 / (2 (width x longest)^2)) of the positions in `run` and the columns of the group; 1 without a width."""
    if width is None:
        return 1.0
    columns = siblings.packed_index.shape[1]
    query = torch.arange(run.start, run.stop, device=siblings.packed_index.device) % columns
    distance = (query[:, None] - torch.arange(columns, device=query.device)).double() / (width * columns)
    return (-distance.square() / 2).exp()[:, None, :]
