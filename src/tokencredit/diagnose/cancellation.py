"""How much of the effects of positive and negative responses on a token cancels, over the batch and within its optimizer step."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.diagnose.common import class_parts, count, evidence, mean_where, on_cpu, percent
from tokencredit.diagnose.table import TokenTable
from tokencredit.types import Finding, TableRow

LISTED_BY_MASS = 20
LISTED_BY_EFFECT = 10
MIN_COUNT = 5
"""Occurrences that a vocabulary item needs to have its mean effect listed."""


class CancellationResult(NamedTuple):
    per_token: Float[Tensor, " tok"]
    per_token_mini: Float[Tensor, " tok"]
    finding: Finding


def token_cancellation(positive: Float[Tensor, " tok"], negative: Float[Tensor, " tok"]) -> Float[Tensor, " tok"]:
    """1 - |D+ + D-| / (|D+| + |D-|): 1 where the two sides cancel, 0 where they agree or one is 0, NaN where both are 0."""
    positive, negative = positive.double(), negative.double()
    return 1 - (positive + negative).abs() / (positive.abs() + negative.abs())


def cancellation(
    table: TokenTable,
    positive: Float[Tensor, " tok"],
    negative: Float[Tensor, " tok"],
    mini_positive: Float[Tensor, " tok"],
    mini_negative: Float[Tensor, " tok"],
) -> CancellationResult:
    """D+ and D-: first-order effect on a token of the raw gradient's positive and negative side (2605.08666; the ratio is a reading).

        by mass = 1 - sum |D+ + D-| / sum (|D+| + |D-|);  mean = plain mean of the tokens' own ratios

    `mini_*` come from the gradient of the token's own optimizer step alone. Tokens in no step (-1) or with NaN there are left out of that
    comparison, on both of its sides: lost = whole batch - own step, over the same tokens.
    """
    table = on_cpu(table)
    whole = torch.stack([evidence(table, "positive", positive), evidence(table, "negative", negative)])
    mini = torch.stack([evidence(table, "mini_positive", mini_positive), evidence(table, "mini_negative", mini_negative)])
    mini[:, table.optimizer_step < 0] = float("nan")
    everything = torch.ones(len(table), dtype=torch.bool)
    overall = _compared(whole, mini, everything)
    numbers = {name.replace("_", "/"): float(value) for name, value in overall.items()}
    by_class = ({"token_class": name, **_compared(whole, mini, part)} for name, part in class_parts(table).items())
    groups = ((int(group), table.group == group) for group in table.group.unique())
    finding = Finding(
        name="cancellation",
        note=_note(overall),
        numbers=numbers,
        tables={
            "by_class": tuple(by_class),
            "by_group": tuple({"group": group, **_compared(whole, mini, part)} for group, part in groups),
            **_vocabulary_tables(table, whole),
        },
    )
    return CancellationResult(token_cancellation(*whole), token_cancellation(*mini), finding)


def _summary(sides: Float[Tensor, "2 tok"], chosen: Bool[Tensor, " tok"]) -> tuple[float, float]:
    """By mass and mean."""
    per_token = token_cancellation(*sides)
    net, mass = sides.sum(0)[chosen].abs().sum(), sides.abs().sum(0)[chosen].sum()
    by_mass = float(1 - net / mass) if float(mass) > 0 else float("nan")
    return by_mass, mean_where(per_token, chosen & ~per_token.isnan())


def _compared(whole: Tensor, mini: Tensor, part: Bool[Tensor, " tok"]) -> dict[str, float | int]:
    known = part & ~whole.isnan().any(0)
    in_step = known & ~mini.isnan().any(0)
    mass, mean = _summary(whole, known)
    batch_mass, batch_mean = _summary(whole, in_step)
    mini_mass, mini_mean = _summary(mini, in_step)
    return {
        "tokens": int(known.sum()),
        "mass": mass,
        "mean": mean,
        "mini_tokens": int(in_step.sum()),
        "mini_mass": mini_mass,
        "mini_mean": mini_mean,
        "lost_mass": batch_mass - mini_mass,
        "lost_mean": batch_mean - mini_mean,
    }


def _vocabulary_tables(table: TokenTable, sides: Float[Tensor, "2 tok"]) -> dict[str, tuple[TableRow, ...]]:
    known = ~sides.isnan().any(0)
    items, item = table.token[known].unique(return_inverse=True)
    text = dict(zip(table.token.tolist(), table.text, strict=True))
    positive, negative = sides[:, known]

    def total(value: Tensor) -> Tensor:
        return torch.zeros(len(items), dtype=torch.float64).index_add_(0, item, value)

    count = total(torch.ones_like(positive))
    mass, net = total(positive.abs() + negative.abs()), total((positive + negative).abs())
    by_side = total(positive), total(negative)
    mean_effect = (by_side[0] + by_side[1]) / count

    def row(number: int) -> dict[str, float | int | str | None]:
        return {
            "text": text[int(items[number])],
            "tokens": int(count[number]),
            "mass": float(mass[number]),
            "positive": float(by_side[0][number]),
            "negative": float(by_side[1][number]),
            "cancellation": float(1 - net[number] / mass[number]) if mass[number] > 0 else float("nan"),
            "mean_effect": float(mean_effect[number]),
        }

    heaviest = mass.argsort(descending=True, stable=True)[:LISTED_BY_MASS].tolist()
    rows: list[TableRow] = []
    for direction, pushed in (("amplified", mean_effect), ("damped", -mean_effect)):
        strongest = [number for number in pushed.argsort(descending=True, stable=True).tolist() if count[number] >= MIN_COUNT]
        rows += [{"direction": direction, **row(number)} for number in strongest[:LISTED_BY_EFFECT] if pushed[number] > 0]
    return {"by_vocabulary": tuple(row(number) for number in heaviest), "amplified_and_damped": tuple(rows)}


def _note(overall: dict[str, float | int]) -> str:
    tokens, lost = count(int(overall["tokens"]), "token"), overall["lost_mass"]
    if overall["mass"] != overall["mass"]:
        return f"Neither side pushes any of {tokens}, so there is nothing to cancel."
    start = (
        f"Over the whole batch {percent(overall['mass'])} of what the two sides do to {tokens} cancels (mean {percent(overall['mean'])})."
    )
    if lost != lost:
        return f"{start} No token can be compared with its own optimizer step."
    return (
        f"{start} Within the optimizer step of their own {percent(overall['mini_mass'])} cancels: over "
        f"{count(int(overall['mini_tokens']), 'token')} splitting {'takes away' if lost >= 0 else 'adds'} {abs(100 * lost):.1f} points."
    )
