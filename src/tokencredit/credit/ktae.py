"""KTAE (2505.16826): a token gains credit by how strongly its presence is associated with success among the siblings.

Association is measured on 2 x 2 tables [[a, b], [c, d]] of responses: rows are with and without the token id, columns right and wrong.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.base import CreditInputs, CreditOutcome, State

TIE = 1e-7
"""Relative slack within which two tables count as equally probable: symmetric ones differ by rounding."""


def _log_choose(total: Tensor, chosen: Tensor) -> Tensor:
    return (total + 1).lgamma() - (chosen + 1).lgamma() - (total - chosen + 1).lgamma()


def fisher_p_value(
    a: Float[Tensor, " table"], b: Float[Tensor, " table"], c: Float[Tensor, " table"], d: Float[Tensor, " table"]
) -> Float[Tensor, " table"]:
    """Two-sided p-value of Fisher's exact test: the probability, given the margins, of a table no more probable than this one.

    P(k) = C(a + c, k) C(b + d, a + b - k) / C(n, a + b), and p is the sum of P(k) over P(k) <= P(a). It is exactly 1
    where no table is more probable, hence also for an empty row or column.
    """
    row, column, other = (sums.double() for sums in (a + b, a + c, b + d))
    low, high = (row - other).clamp(min=0), torch.minimum(row, column)
    widest = int(high.max()) if high.numel() else 0
    k = torch.arange(widest + 1, dtype=torch.float64, device=row.device).expand(len(row), -1)
    possible = (k >= low[:, None]) & (k <= high[:, None])
    k = k.clamp(low[:, None], high[:, None])
    log_chance = _log_choose(column[:, None], k) + _log_choose(other[:, None], row[:, None] - k)
    log_chance = (log_chance - _log_choose(column + other, row)[:, None]).where(possible, -torch.inf)
    more_probable = log_chance > log_chance.gather(-1, a.long()[:, None]) + TIE
    p_value = log_chance.exp().where(~more_probable, 0.0).sum(-1)
    return p_value.where(more_probable.any(-1), 1.0)


def information_gain(
    a: Float[Tensor, " table"], b: Float[Tensor, " table"], c: Float[Tensor, " table"], d: Float[Tensor, " table"]
) -> Float[Tensor, " table"]:
    """Mutual information of row and column in bits: the sum of n_ij / n log2(n_ij n / (n_i n_j)); 0 for an empty table.

    In this form independence is exactly 0; the entropy of the column minus its entropy given the row would round.
    """
    cells = torch.stack([a, b, c, d]).double()
    rows = torch.stack([a + b, a + b, c + d, c + d]).double()
    columns = torch.stack([a + c, b + d, a + c, b + d]).double()
    total = cells.sum(0)
    ratio = cells * total / (rows * columns).clamp(min=1)
    return (torch.xlogy(cells, ratio).sum(0) / (total.clamp(min=1) * math.log(2))).clamp(min=0)


FREQUENCY_FLOOR = 1e-5
"""Added to a frequency in a denominator, for a token that one side never used."""


class Occurrences(NamedTuple):
    """Every pair of group and token id that occurs; the last axis of counts is correct, wrong."""

    pair: Int[Tensor, " tok"]
    """The pair of each counted token, in the order of the mask."""
    containing: Float[Tensor, "pair 2"]
    """Responses that hold the token id."""
    siblings: Float[Tensor, "pair 2"]
    """Graded responses of the group."""
    uses: Float[Tensor, "pair 2"]
    """Tokens that are the id."""
    length: Float[Tensor, "pair 2"]
    """Tokens of the group."""


def count_occurrences(
    tokens: Int[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    group: Int[Tensor, " seq"],
    graded: Bool[Tensor, " seq"],
    correct: Bool[Tensor, " seq"],
) -> Occurrences:
    """Count over the masked tokens of graded responses; a graded response without tokens still counts as a sibling."""
    rows = max(len(mask), 1)
    row = mask.nonzero()[:, 0]
    group_names, group_index = group.unique(return_inverse=True)
    vocabulary, token_index = tokens[mask].unique(return_inverse=True)
    pairs, pair = (group_index[row] * len(vocabulary) + token_index).unique(return_inverse=True)
    group_of_pair = pairs // max(len(vocabulary), 1)
    once_per_response = (pair * rows + row).unique()

    def by_side(index: Tensor, row: Tensor, size: int) -> Tensor:
        return torch.bincount(2 * index + (~correct[row]).long(), minlength=2 * size).view(size, 2).double()

    in_group = graded.nonzero()[:, 0]
    return Occurrences(
        pair,
        containing=by_side(once_per_response // rows, once_per_response % rows, len(pairs)),
        siblings=by_side(group_index[in_group], in_group, len(group_names))[group_of_pair],
        uses=by_side(pair, row, len(pairs)),
        length=by_side(group_index[row], row, len(group_names))[group_of_pair],
    )


def saturated_frequency(
    uses: Float[Tensor, "pair 2"], length: Float[Tensor, "pair 2"], *, saturation: float = 2.0, length_share: float = 0.5
) -> Float[Tensor, "pair 2"]:
    """BM25: f (k1 + 1) / (f + k1 (1 - b + b L / mean L)), f = uses / L the token's share of its side; 0 where it never occurs."""
    share = uses / length.clamp(min=1)
    relative_length = length / length.mean(-1, keepdim=True).clamp(min=1)
    frequency = share * (saturation + 1) / (share + saturation * (1 - length_share + length_share * relative_length))
    return frequency.where(uses > 0, 0.0)


def key_values(
    found: Occurrences,
    *,
    fisher_weight: float = 1.0,
    gain_weight: float = 1.0,
    top: float = 1.0,
    saturation: float = 2.0,
    length_share: float = 0.5,
) -> Float[Tensor, " pair"]:
    """Key value of every pair, between -top and top; `ktae_credit` has the formula. A one-sided group has p = 1 and IG = 0, hence 0."""
    table = (*found.containing.unbind(-1), *(found.siblings - found.containing).unbind(-1))
    p_value = fisher_p_value(*table)
    significance = (-2 * p_value).exp().where(p_value < 1, 0.0)
    strength = (fisher_weight * significance + gain_weight * information_gain(*table)) / (fisher_weight + gain_weight)
    in_correct, in_wrong = (found.containing / found.siblings.clamp(min=1)).sqrt().asin().unbind(-1)
    correct, wrong = saturated_frequency(found.uses, found.length, saturation=saturation, length_share=length_share).unbind(-1)
    direction = in_correct - in_wrong + correct / (wrong + FREQUENCY_FLOOR) - wrong / (correct + FREQUENCY_FLOOR)
    return top * (strength * direction / 2).tanh()  # = 2 top (sigmoid(strength x direction) - 1/2)


def ktae_credit(
    inputs: CreditInputs,
    state: State,
    *,
    fisher_weight: float = 1.0,
    gain_weight: float = 1.0,
    top: float = 1.0,
    saturation: float = 2.0,
    length_share: float = 0.5,
    correct_above: float = 0.5,
) -> CreditOutcome:
    """a_it = A_i + key(o_it), key = 2 top (sigmoid((fisher_weight F + gain_weight IG) x / (fisher_weight + gain_weight)) - 1/2).

    F = exp(-2 p) of Fisher's test (0 if p = 1), IG in bits, x = asin sqrt(a / (a + c)) - asin sqrt(b / (b + d)) + fc / (fw + 1e-5)
    - fw / (fc + 1e-5), of the group's table; fc and fw are `saturated_frequency` over correct and wrong responses. The key is 0
    for end tokens and in one-sided groups; a response with a NaN score is left out of all counts and receives 0.
    """
    if inputs.score is None:
        raise ValueError("score is missing; KTAE compares correct responses with wrong ones")
    if fisher_weight + gain_weight <= 0:
        raise ValueError(f"fisher_weight is {fisher_weight} and gain_weight is {gain_weight}; one of them must be above 0")
    graded = ~inputs.score.isnan()
    counted = inputs.mask & graded[:, None]
    found = count_occurrences(inputs.tokens, counted, inputs.group, graded, inputs.score > correct_above)
    values = key_values(
        found, fisher_weight=fisher_weight, gain_weight=gain_weight, top=top, saturation=saturation, length_share=length_share
    )
    key = torch.zeros_like(counted, dtype=torch.float64).masked_scatter(counted, values[found.pair])
    ends = torch.isin(inputs.tokens, torch.tensor(inputs.end_tokens, dtype=inputs.tokens.dtype, device=inputs.tokens.device))
    key = key.where(~ends, 0.0).to(inputs.advantage.dtype)
    return CreditOutcome((inputs.advantage[:, None] + key).where(counted, 0.0), None, state)
