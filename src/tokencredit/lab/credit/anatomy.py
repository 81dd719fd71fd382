"""The anatomy of every credit's failures: shares by kind, and responses in which a reader sees them token by token."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.lab.credit.batch import Drawn
from tokencredit.lab.credit.examples import disagreement, worst_to_typical
from tokencredit.lab.credit.failures import STANDARD_ERRORS, Kinds, failure, kinds, told_apart
from tokencredit.lab.credit.known_tokens import flat, known_tokens
from tokencredit.lab.credit.order import CreditOrder
from tokencredit.lab.credit.prefix_tree import Truth
from tokencredit.lab.credit.recipes import BASELINE, ORACLE
from tokencredit.report.blocks import rounded
from tokencredit.rollout.grading import RIGHT
from tokencredit.trainer.recorder import TokenLabels


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
