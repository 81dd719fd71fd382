"""How far two yes-or-no properties of responses go together, from their 2 x 2 tables [[a, b], [c, d]] of counts."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

ALIKE = 1e-7
"""Relative slack within which two tables count as equally probable: symmetric ones differ by rounding."""


def _log_choose(total: Tensor, chosen: Tensor) -> Tensor:
    return (total + 1).lgamma() - (chosen + 1).lgamma() - (total - chosen + 1).lgamma()


def fisher_p_value(
    a: Float[Tensor, " table"], b: Float[Tensor, " table"], c: Float[Tensor, " table"], d: Float[Tensor, " table"]
) -> Float[Tensor, " table"]:
    """Two-sided p-value of Fisher's exact test: the chance, margins given, of a table no more probable than this one.

    P(k) = C(a + c, k) C(b + d, a + b - k) / C(n, a + b), and p is the sum of P(k) over P(k) <= P(a). It is exactly 1
    where no table is more probable, and so for an empty row or column.
    """
    row, column, other = (sums.double() for sums in (a + b, a + c, b + d))
    low, high = (row - other).clamp(min=0), torch.minimum(row, column)
    widest = int(high.max()) if high.numel() else 0
    k = torch.arange(widest + 1, dtype=torch.float64, device=row.device).expand(len(row), -1)
    possible = (k >= low[:, None]) & (k <= high[:, None])
    k = k.clamp(low[:, None], high[:, None])
    log_chance = _log_choose(column[:, None], k) + _log_choose(other[:, None], row[:, None] - k)
    log_chance = (log_chance - _log_choose(column + other, row)[:, None]).where(possible, -torch.inf)
    more_probable = log_chance > log_chance.gather(-1, a.long()[:, None]) + ALIKE
    p_value = log_chance.exp().where(~more_probable, 0.0).sum(-1)
    return p_value.where(more_probable.any(-1), 1.0)


def information_gain(
    a: Float[Tensor, " table"], b: Float[Tensor, " table"], c: Float[Tensor, " table"], d: Float[Tensor, " table"]
) -> Float[Tensor, " table"]:
    """Bits that knowing the row tells about the column: the sum of n_ij / n log2(n_ij n / (n_i n_j)); 0 for an empty table.

    Written this way independence is exactly 0: the entropy of the column less its entropy given the row would round.
    """
    cells = torch.stack([a, b, c, d]).double()
    rows = torch.stack([a + b, a + b, c + d, c + d]).double()
    columns = torch.stack([a + c, b + d, a + c, b + d]).double()
    total = cells.sum(0)
    ratio = cells * total / (rows * columns).clamp(min=1)
    return (torch.xlogy(cells, ratio).sum(0) / (total.clamp(min=1) * math.log(2))).clamp(min=0)
