"""Compares a credit with the true advantage A* of tokens: agreement, kinds of failure, and example responses.

All of it is measured on tokens that are sampled, in the loss, and have a known A*; intervals come from resampled prompts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from rich.text import Text
from torch import Tensor

from tokencredit.lab.credit.batch import SampledBatch
from tokencredit.lab.credit.prefix_tree import Truth
from tokencredit.lab.credit.quality import Bounded, bounded
from tokencredit.lab.credit.recipes import BASELINE, ORACLE, CreditOrder
from tokencredit.report.blocks import rounded
from tokencredit.report.terminal import credit_legend, credit_line
from tokencredit.rollout.grading import RIGHT
from tokencredit.trainer.token_table import TokenLabels


class Agreement(NamedTuple):
    pearson: Bounded
    auroc: Bounded
    on_decisive: Bounded
    """Share of all |credit| on decisive tokens."""
    on_format: Bounded
    """Share of all |credit| on free-format tokens; NaN if the task defines none."""
    same_sign: Bounded
    """Share of decisive tokens with credit whose credit has the sign of A*."""


def agreement(
    credit: Float[Tensor, " tok"],
    advantage: Float[Tensor, " tok"],
    truth: Float[Tensor, " tok"],
    decisive: Bool[Tensor, " tok"],
    format_token: Bool[Tensor, " tok"] | None,
    group: Int[Tensor, " tok"],
    times: Float[Tensor, "draw grp"],
) -> Agreement:
    """`advantage` is that of the token's response; `group` numbers prompts from 0; `times` is how often each resample holds each prompt."""
    credit, advantage, truth = credit.double(), advantage.double(), truth.double()
    size = credit.abs()
    decisive_with_credit = decisive & (credit != 0)
    nonzero = advantage != 0
    relative = size[nonzero] / advantage[nonzero].abs()
    nothing = torch.full_like(times[:, 0], torch.nan)
    return Agreement(
        pearson=bounded(pearson(credit, truth, group, times)),
        auroc=bounded(auroc(relative, decisive[nonzero], group[nonzero], times)),
        on_decisive=bounded(share(size, decisive, group, times)),
        on_format=bounded(nothing if format_token is None else share(size, format_token, group, times)),
        same_sign=bounded(share(decisive_with_credit.double(), decisive_with_credit & (credit.sign() == truth.sign()), group, times)),
    )


def per_prompt(value: Float[Tensor, " tok"], group: Int[Tensor, " tok"], prompts: int) -> Float[Tensor, " grp"]:
    return torch.zeros(prompts, dtype=torch.float64).index_add_(0, group, value.double())


def pearson(
    one: Float[Tensor, " tok"], other: Float[Tensor, " tok"], group: Int[Tensor, " tok"], times: Float[Tensor, "draw grp"]
) -> Float[Tensor, " draw"]:
    """Correlation over tokens for each resample; NaN if either is constant."""
    # Centred first: sums of squares of large numbers would cancel.
    one, other = (value.double() - value.double().mean() for value in (one, other))
    terms = (torch.ones_like(one), one, other, one * one, other * other, one * other)
    count, a, b, aa, bb, ab = (times @ per_prompt(term, group, times.shape[1]) for term in terms)
    first, second = aa - a * a / count, bb - b * b / count
    flat = (first <= 1e-12 * aa.clamp(min=1e-300)) | (second <= 1e-12 * bb.clamp(min=1e-300))
    return ((ab - a * b / count) / (first * second).sqrt()).where(~flat, torch.nan)


def auroc(
    score: Float[Tensor, " tok"], positive: Bool[Tensor, " tok"], group: Int[Tensor, " tok"], times: Float[Tensor, "draw grp"]
) -> Float[Tensor, " draw"]:
    """P(score of a positive token > score of another one), ties counting half; NaN if either kind is missing.

    Scores that differ by rounding alone are ties: a method that gives every token the same must come out at exactly one half.
    """
    _, level = torch.unique((score.double() * 1e6).round(), return_inverse=True)
    cells = level * times.shape[1] + group
    size = (int(level.max()) + 1 if len(level) else 0) * times.shape[1]

    def weight(kind: Tensor) -> Tensor:
        """The weight of each score level in each resample."""
        table = torch.zeros(size, dtype=torch.float64).index_add_(0, cells, kind.double())
        return times @ table.view(-1, times.shape[1]).T

    above, below = weight(positive), weight(~positive)
    beaten = below.cumsum(1) - below / 2
    return (above * beaten).sum(1) / (above.sum(1) * below.sum(1))


def share(
    weight: Float[Tensor, " tok"], chosen: Bool[Tensor, " tok"], group: Int[Tensor, " tok"], times: Float[Tensor, "draw grp"]
) -> Float[Tensor, " draw"]:
    """Part of the weight that lies on chosen tokens; NaN if the total weight is 0."""
    inside, whole = (times @ per_prompt(value, group, times.shape[1]) for value in (weight.double() * chosen, weight))
    return inside / whole


def coefficient_table(
    credit: Float[Tensor, " tok"], advantage: Float[Tensor, " tok"], token_class: list[str]
) -> dict[str, dict[str, float | None]]:
    """Class -> side -> mean of credit / advantage over the tokens of responses of that side; None without such tokens.

    A credit that treats both sides alike has equal columns; otherwise gradients on shared tokens do not cancel.
    """
    found: dict[str, dict[str, float | None]] = {}
    coefficient = credit.double() / advantage.double()
    for name in sorted(set(token_class)):
        inside = torch.tensor([one == name for one in token_class])
        sides = {"positive": inside & (advantage > 0), "negative": inside & (advantage < 0)}
        found[name] = {side: float(coefficient[chosen].mean()) if bool(chosen.any()) else None for side, chosen in sides.items()}
    return found


def known_tokens(batch: SampledBatch, truth: Truth) -> Bool[Tensor, "seq tok"]:
    return ~truth.advantage.isnan() & batch.rollouts.loss_mask.cpu()


def flat(value: Tensor, known: Bool[Tensor, "seq tok"]) -> Float[Tensor, " tok"]:
    """The known tokens, row by row; one number per response is repeated for its tokens."""
    value = value.cpu()
    return (value if value.dim() == 2 else value[:, None].expand(known.shape))[known].double()


THRESHOLDS = (0.05, 0.1, 0.2, 0.3)
HELD = 0.8


def corrected_square(truth: Float[Tensor, " tok"], variance: Float[Tensor, " tok"]) -> Float[Tensor, " tok"]:
    """An unbiased estimate of A*^2: E[(A* + noise)^2] = A*^2 + variance. For a single token it may be negative."""
    return truth.double().square() - variance.double()


def reliability(truth: Float[Tensor, " tok"], variance: Float[Tensor, " tok"]) -> float:
    """The part of the variance of A* that is not noise: the square of the highest possible correlation with it."""
    centred = truth.double() - truth.double().mean()
    whole = float(centred.square().sum())
    return (whole - float(variance.double().sum())) / whole if whole > 0 else float("nan")


def tokens_holding(square: Float[Tensor, " tok"], order: Float[Tensor, " tok"], part: float) -> float:
    """Share of tokens that hold `part` of the sum of `square`, those with the largest `order` first."""
    total = float(square.sum())
    if total <= 0:
        return float("nan")
    held = square[order.argsort(descending=True, stable=True)].cumsum(0)
    return (int((held >= part * total).double().argmax()) + 1) / len(square)


def concentration(truth: Float[Tensor, " tok"], variance: Float[Tensor, " tok"], token_class: list[str]) -> dict[str, Any]:
    """Shares by threshold, tokens that hold most of sum A*^2, and each class's part of that sum."""
    square = corrected_square(truth, variance)
    total = float(square.sum())
    classes = {}
    for name in sorted(set(token_class)):
        inside = torch.tensor([one == name for one in token_class])
        classes[name] = {
            "tokens": int(inside.sum()),
            "share_of_tokens": float(inside.double().mean()),
            "share_of_square": float(square[inside].sum()) / total if total > 0 else float("nan"),
            "root_mean_square": float(square[inside].mean().clamp(min=0).sqrt()),
            "decisive": {str(limit): float((truth[inside].abs() > limit).double().mean()) for limit in THRESHOLDS},
        }
    return {
        "tokens": len(truth),
        "share_above": {str(limit): float((truth.abs() > limit).double().mean()) for limit in THRESHOLDS},
        "tokens_holding_80_percent": tokens_holding(square, truth.abs(), HELD),
        "sum_of_squares": total,
        "sum_of_squares_with_noise": float(truth.double().square().sum()),
        "noise_sd": float(variance.double().mean().sqrt()),
        "reliability": reliability(truth, variance),
        "classes": classes,
    }


STANDARD_ERRORS = 2.0
"""A token whose |A*| is below this many of its standard errors does not differ significantly from 0."""


class Kinds(NamedTuple):
    """Every token is of exactly one kind."""

    undecided: Bool[Tensor, "*tok"]
    """A* does not differ significantly from 0."""
    against: Bool[Tensor, "*tok"]
    """Credit has the other sign than A*."""
    agreeing: Bool[Tensor, "*tok"]
    """Credit has the sign of A*."""
    missed: Bool[Tensor, "*tok"]
    """A* differs significantly from 0, and the credit is 0."""


class Failure(NamedTuple):
    """Shares by kind of token: the first three of all |credit|, so they sum to 1; the last of all significant |A*|."""

    undecided: Bounded
    against: Bounded
    agreeing: Bounded
    missed: Bounded


def significant(truth: Float[Tensor, "*tok"], variance: Float[Tensor, "*tok"]) -> Bool[Tensor, "*tok"]:
    """Whether A* differs significantly from 0. Nearly certain tokens are not measured (A* and its error are 0): they do not."""
    return (truth != 0) & (truth.abs() >= STANDARD_ERRORS * variance.sqrt())


def kinds(credit: Float[Tensor, "*tok"], truth: Float[Tensor, "*tok"], variance: Float[Tensor, "*tok"]) -> Kinds:
    decided, same, none = significant(truth, variance), credit.sign() == truth.sign(), credit == 0
    return Kinds(~decided, decided & ~same & ~none, decided & same, decided & none)


def failure(
    credit: Float[Tensor, " tok"],
    truth: Float[Tensor, " tok"],
    variance: Float[Tensor, " tok"],
    chosen: Bool[Tensor, " tok"],
    group: Int[Tensor, " tok"],
    times: Float[Tensor, "draw grp"],
) -> Failure:
    """Failure shares over the `chosen` tokens; `group` and `times` as in `agreement`. NaN without credit or without significant A*."""
    kind = kinds(credit, truth, variance)
    size, due = credit.abs() * chosen, truth.abs() * (chosen & ~kind.undecided)
    weights = Kinds(undecided=size, against=size, agreeing=size, missed=due)
    return Failure(*(bounded(share(weight, inside, group, times)) for weight, inside in zip(weights, kind, strict=True)))


def disagreement(
    credit: Float[Tensor, "seq tok"],
    truth: Float[Tensor, "seq tok"],
    known: Bool[Tensor, "seq tok"],
    decisive: Bool[Tensor, "seq tok"],
) -> Float[Tensor, " seq"]:
    """1 - cos(credit, A*) over the known tokens of each response: 0 is proportional to the truth, 2 is its opposite.

    Half the squared distance of the two at length 1. NaN where a response has no decisive token or no credit at all: the shape
    of noise alone, or of nothing, cannot be right or wrong.
    """
    one, other = (value.double().where(known, 0.0) for value in (credit, truth))
    lengths = one.norm(dim=1) * other.norm(dim=1)
    apart = 1 - (one * other).sum(1) / lengths
    return apart.where((decisive & known).any(1) & (lengths > 0), torch.nan)


def worst_to_typical(apart: Float[Tensor, " seq"], count: int) -> list[int]:
    """Rows at `count` ranks, evenly from the largest value to the median one; ties keep their order, NaN is never chosen."""
    order = [row for row in apart.argsort(descending=True, stable=True).tolist() if not apart[row].isnan()]
    if not order or not count:
        return []
    median = (len(order) - 1) // 2
    return list(dict.fromkeys(order[round(place * median / max(1, count - 1))] for place in range(count)))


def anatomy_record(
    batch: SampledBatch,
    truth: Truth,
    labels: TokenLabels,
    credits: Mapping[str, Float[Tensor, "seq tok"]],
    same: Mapping[str, str],
    times: Float[Tensor, "draw grp"],
    order: CreditOrder,
) -> dict[str, Any]:
    """`same` names the first credit that each is a multiple of; only that one has examples, and the oracle has none."""
    known, score = known_tokens(batch, truth), batch.score.cpu()
    decisive = significant(truth.advantage, truth.variance) & (truth.advantage.abs() > order.decisive)
    advantage, variance, group, scores = (flat(value, known) for value in (truth.advantage, truth.variance, batch.rollouts.group, score))
    sides = {"right": scores >= RIGHT, "wrong": scores < RIGHT}
    kept = _Kept(batch, truth, labels, credits[BASELINE])
    rows = []
    for name, credit in credits.items():
        apart = disagreement(credit, truth.advantage, known & ~score.isnan()[:, None], decisive)
        chosen = worst_to_typical(apart, order.examples) if same[name] == name != ORACLE else []
        found = {side: failure(flat(credit, known), advantage, variance, inside, group.long(), times) for side, inside in sides.items()}
        rows.append(
            {
                "method": name,
                "same_credit_as": None if same[name] == name else same[name],
                **{side: {field: getattr(one, field)._asdict() for field in one._fields} for side, one in found.items()},
                "examples": [
                    {
                        "response": kept.place(row),
                        "disagreement": float(apart[row]),
                        "rank": 1 + int((apart > apart[row]).sum()),
                        "of": int((~apart.isnan()).sum()),
                        "credit": kept.values(credit, row),
                        "kind": kept.kinds(credit, row),
                    }
                    for row in chosen
                ],
            }
        )
    return {"standard_errors": STANDARD_ERRORS, "rows": rows, "responses": kept.responses}


class _Kept:
    """The example responses, each stored once, however many recipes show it."""

    def __init__(self, batch: SampledBatch, truth: Truth, labels: TokenLabels, baseline: Float[Tensor, "seq tok"]) -> None:
        self.batch, self.truth, self.labels, self.baseline = batch, truth, labels, baseline
        self.mask: Bool[Tensor, "seq tok"] = batch.rollouts.mask.cpu()
        self.places: dict[int, int] = {}
        self.responses: list[dict[str, Any]] = []

    def values(self, value: Float[Tensor, "seq tok"], row: int) -> list[float | int | None]:
        return [rounded(one) for one in value.cpu()[row][self.mask[row]].double().tolist()]

    def kinds(self, credit: Float[Tensor, "seq tok"], row: int) -> list[str | None]:
        """The kind of each token; None if its A* is unknown."""
        own = self.mask[row]
        truth, variance = self.truth.advantage[row][own], self.truth.variance[row][own]
        found = torch.stack(list(kinds(credit[row][own], truth, variance))).double().argmax(0).tolist()
        return [None if unknown else Kinds._fields[kind] for kind, unknown in zip(found, truth.isnan().tolist(), strict=True)]

    def place(self, row: int) -> int:
        if row not in self.places:
            self.places[row] = len(self.responses)
            self.responses.append(self._response(row))
        return self.places[row]

    def _response(self, row: int) -> dict[str, Any]:
        start, count = int(self.mask[:row].sum()), int(self.mask[row].sum())

        def own(labels: Sequence[str]) -> list[str]:
            return list(labels[start : start + count])

        return {
            "row": row,
            "prompt": self.batch.problems[int(self.batch.rollouts.group[row])].prompt,
            "score": float(self.batch.score[row]),
            "right": float(self.batch.score[row]) >= RIGHT,
            "text": own(self.labels.text),
            "token_class": own(self.labels.token_class),
            "truth": self.values(self.truth.advantage, row),
            "standard_error": self.values(self.truth.variance.sqrt(), row),
            "probability": self.values(self.batch.evidence.logp.exp(), row),
            "baseline_credit": self.values(self.baseline, row),
        }


def worst_examples(record: Mapping[str, Any]) -> Iterator[Text]:
    """The worst response of each method for the terminal. A token with unknown A* is coloured as A* = 0."""
    shown = [row for row in record["anatomy"]["rows"] if row["examples"]]
    for row in shown:
        worst = row["examples"][0]
        response = record["anatomy"]["responses"][worst["response"]]
        verdict = "right" if response["right"] else "wrong"
        yield Text(f"{row['method']}: disagrees most, 1 - cos = {worst['disagreement']:.2f}, a {verdict} response", style="bold")
        for what, values in (("A*", response["truth"]), ("credit", worst["credit"])):
            yield credit_line(response["prompt"], response["text"], [value or 0.0 for value in values], f"{what:<8}")
    if shown:
        yield credit_legend()
