"""By which kind of failure credit is lost: on tokens that decided nothing, against the truth, or not given where it was due.

Which responses are shown of a recipe: from where its credit disagrees most with the truth to a typical one.

The anatomy of every credit's failures: shares by kind, and responses in which a reader sees them token by token.

The worst example of every recipe for a terminal: the same response twice, on the colours of A* and of the credit.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from rich.text import Text
from torch import Tensor

from tokencredit.lab.credit.agreement import flat, known_tokens, share
from tokencredit.lab.credit.batch import Drawn
from tokencredit.lab.credit.prefix_tree import Truth
from tokencredit.lab.credit.quality import Bounded, bounded
from tokencredit.lab.credit.recipes import BASELINE, ORACLE, CreditOrder
from tokencredit.report.blocks import rounded
from tokencredit.report.terminal import credit_legend, credit_line
from tokencredit.rollout.grading import RIGHT
from tokencredit.trainer.token_table import TokenLabels

STANDARD_ERRORS = 2.0
"""A token whose |A*| is less than so many of its standard errors is not told apart from one that decided nothing."""


class Kinds(NamedTuple):
    """Every token is of exactly one kind."""

    undecided: Bool[Tensor, "*tok"]
    """A* is not told apart from 0."""
    against: Bool[Tensor, "*tok"]
    """Credit has the other sign than A*."""
    agreeing: Bool[Tensor, "*tok"]
    """Credit has the sign of A*."""
    missed: Bool[Tensor, "*tok"]
    """A* is told apart from 0, and there is no credit."""


class Failure(NamedTuple):
    """Shares by kind of token: the first three of all |credit|, so that they sum to 1; the last of the |A*| that is told apart from 0."""

    undecided: Bounded
    against: Bounded
    agreeing: Bounded
    missed: Bounded


def told_apart(truth: Float[Tensor, "*tok"], variance: Float[Tensor, "*tok"]) -> Bool[Tensor, "*tok"]:
    """From 0. Nearly certain tokens are not measured, A* and its error are both 0 there: they decided nothing either."""
    return (truth != 0) & (truth.abs() >= STANDARD_ERRORS * variance.sqrt())


def kinds(credit: Float[Tensor, "*tok"], truth: Float[Tensor, "*tok"], variance: Float[Tensor, "*tok"]) -> Kinds:
    decided, same, none = told_apart(truth, variance), credit.sign() == truth.sign(), credit == 0
    return Kinds(~decided, decided & ~same & ~none, decided & same, decided & none)


def failure(
    credit: Float[Tensor, " tok"],
    truth: Float[Tensor, " tok"],
    variance: Float[Tensor, " tok"],
    chosen: Bool[Tensor, " tok"],
    group: Int[Tensor, " tok"],
    times: Float[Tensor, "draw grp"],
) -> Failure:
    """Of the `chosen` tokens alone; `group` and `times` as in agreement. NaN where there is no credit, or nothing was decided."""
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
    batch: Drawn,
    truth: Truth,
    labels: TokenLabels,
    credits: Mapping[str, Float[Tensor, "seq tok"]],
    same: Mapping[str, str],
    times: Float[Tensor, "draw grp"],
    order: CreditOrder,
) -> dict[str, Any]:
    """`same` names the first credit that each is a multiple of; only that one has examples, and the oracle has none."""
    known, score = known_tokens(batch, truth), batch.score.cpu()
    decisive = told_apart(truth.advantage, truth.variance) & (truth.advantage.abs() > order.decisive)
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
    """Responses that are shown, each once, however many recipes show it."""

    def __init__(self, batch: Drawn, truth: Truth, labels: TokenLabels, baseline: Float[Tensor, "seq tok"]) -> None:
        self.batch, self.truth, self.labels, self.baseline = batch, truth, labels, baseline
        self.mask: Bool[Tensor, "seq tok"] = batch.rollouts.mask.cpu()
        self.places: dict[int, int] = {}
        self.responses: list[dict[str, Any]] = []

    def values(self, value: Float[Tensor, "seq tok"], row: int) -> list[float | int | None]:
        return [rounded(one) for one in value.cpu()[row][self.mask[row]].double().tolist()]

    def kinds(self, credit: Float[Tensor, "seq tok"], row: int) -> list[str | None]:
        """None where A* is not known."""
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
    """A token whose A* is not known is drawn as one that decided nothing."""
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
