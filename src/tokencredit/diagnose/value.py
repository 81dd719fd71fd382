"""Are the tokens an update boosted worth more than those it suppressed, inside successes and inside failures?

The claim is published without a formula (The Cancellation Hypothesis, arXiv 2605.08666); how value is measured is our reading.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.diagnose.common import DEAD_BAND, SIDES, count, evidence, mean_where, number
from tokencredit.diagnose.table import TokenTable
from tokencredit.types import Finding, TableRow

INTERVAL = (0.025, 0.975)


class Difference(NamedTuple):
    """Mean over boosted tokens minus mean over suppressed ones, with a 95 % interval; NaN if unknown."""

    difference: float
    low: float
    high: float
    prompts: int


def token_value(
    table: TokenTable,
    change: Float[Tensor, " tok"],
    value_before: Float[Tensor, " tok"],
    value_after: Float[Tensor, " tok"],
    *,
    seed: int,
    draws: int = 2000,
    dead_band: float = DEAD_BAND,
) -> Finding:
    """Mean probability of success after the token, and mean gain over the one before it, by side and by boosted or suppressed.

    Boosted: change > dead_band; suppressed: change < -dead_band. Only tokens whose change and both values are known count.
    """
    moved, after = evidence(table, "change", change), evidence(table, "value_after", value_after)
    gain = after - evidence(table, "value_before", value_before)
    known = ~(gain.isnan() | moved.isnan())
    measures = {"value": after, "gain": gain}
    cells: list[TableRow] = []
    differences: list[TableRow] = []
    numbers = {"tokens": float(known.sum()), "still": mean_where(moved.abs() <= dead_band, known)}
    for name, sign in SIDES.items():
        here = known & (table.side == sign)
        boosted, suppressed = here & (moved > dead_band), here & (moved < -dead_band)
        for movement, chosen in (("boosted", boosted), ("suppressed", suppressed)):
            means = {measure: mean_where(value, chosen) for measure, value in measures.items()}
            counts = {"tokens": int(chosen.sum()), "prompts": len(table.group[chosen].unique())}
            cells.append({"side": name, "movement": movement, **counts, **means})
        for measure, value in measures.items():
            found = bootstrap_difference(value, boosted, suppressed, table.group, seed=seed, draws=draws)
            differences.append({"side": name, "measure": measure, **found._asdict()})
            numbers |= {f"{name}/{measure}/{end}": getattr(found, end) for end in ("difference", "low", "high")}
    note = " ".join(_sentence(name, cells, numbers) for name in SIDES)
    return Finding(name="value", note=note, numbers=numbers, tables={"cells": tuple(cells), "differences": tuple(differences)})


def bootstrap_difference(
    value: Float[Tensor, " tok"],
    boosted: Bool[Tensor, " tok"],
    suppressed: Bool[Tensor, " tok"],
    group: Int[Tensor, " tok"],
    *,
    seed: int,
    draws: int,
) -> Difference:
    """Difference of means, prompts redrawn with replacement `draws` times; draws with an empty cell are left out.

    Prompts without a boosted or suppressed token are not drawn. With fewer than two the interval is NaN.
    """
    either = boosted | suppressed
    prompts, index = group[either].unique(return_inverse=True)
    inside = torch.stack([boosted[either], suppressed[either]]).double()
    shape = (2, len(prompts))
    sums = torch.zeros(shape, dtype=torch.float64).index_add_(1, index, value[either].double() * inside)
    tokens = torch.zeros(shape, dtype=torch.float64).index_add_(1, index, inside)

    def difference(times: Float[Tensor, "draw grp"]) -> Float[Tensor, " draw"]:
        up, down = ((sums @ times.T) / (tokens @ times.T)).unbind()
        return up - down

    observed = float(difference(torch.ones(1, len(prompts), dtype=torch.float64)))
    if len(prompts) < 2 or math.isnan(observed):
        return Difference(observed, math.nan, math.nan, len(prompts))
    picked = torch.randint(len(prompts), (draws, len(prompts)), generator=torch.Generator().manual_seed(seed))
    times = torch.zeros(draws, len(prompts), dtype=torch.float64).scatter_add_(1, picked, torch.ones(picked.shape, dtype=torch.float64))
    low, high = difference(times).nanquantile(torch.tensor(INTERVAL, dtype=torch.float64)).tolist()
    return Difference(observed, low, high, len(prompts))


def _sentence(side: str, cells: list[TableRow], numbers: dict[str, float]) -> str:
    tokens = [int(row["tokens"] or 0) for row in cells if row["side"] == side]
    empty = [movement for movement, amount in zip(("boosted", "suppressed"), tokens, strict=True) if amount == 0]
    if empty:
        return f"In {side} responses no {' and no '.join(empty)} token has a known value, so nothing can be compared."
    value, gain, low, high = (numbers[f"{side}/{end}"] for end in ("value/difference", "gain/difference", "gain/low", "gain/high"))
    interval = f"the 95 % interval over prompts is {number(low)} to {number(high)}"
    verdict = "fewer than two prompts, so no interval" if math.isnan(low) else interval
    return (
        f"In {side} responses {count(tokens[0], 'boosted token')} less {count(tokens[1], 'suppressed token')}: "
        f"mean value {value:+.3f}, mean gain {gain:+.3f} ({verdict})."
    )
