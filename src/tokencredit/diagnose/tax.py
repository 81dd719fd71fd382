"""Learning tax: the share of an update's KL that lies at positions where credit should be nil."""

from collections.abc import Set

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.diagnose.common import class_parts, evidence, mean_where, on_cpu, percent
from tokencredit.diagnose.table import TokenTable
from tokencredit.types import Finding, TableRow

CERTAIN = 0.99
"""With a probability of success between 0 and 1 the true advantage of a token is at most 1 - p, so here at most 0.01."""

MEANING = {
    "format": "the task says they carry no credit",
    "certain": f"p ≥ {CERTAIN} before the update",
    "dead": "all scores of the group are equal",
    "any": "any of these",
    "measured": "the chance of success does not change",
}


def tax(
    table: TokenTable,
    kl: Float[Tensor, " tok"],
    *,
    format_classes: Set[str],
    value_before: Float[Tensor, " tok"] | None = None,
    value_after: Float[Tensor, " tok"] | None = None,
    nil: float = 0.05,
) -> Finding:
    """Share of the total KL(before || after) that lies where credit is nil.

        tax = sum of KL over nil positions / sum of KL over all positions

    A reading: 2604.13088v1 (Prop. 3.1) defines the tax for reward-irrelevant tokens that siblings share; here nil is what a yardstick of
    `MEANING` says. "measured" is |value_after - value_before| < nil, and its shares are among tokens where both are known; "format" is
    absent without format classes. A KL below 0 is rounding and counts as 0; NaN is left out; where nothing moved shares are NaN.
    """
    if not 0 < nil < float("inf"):
        raise ValueError(f"nil is {nil}; it must be above 0, a change of the chance of success")
    table = on_cpu(table)
    moved = evidence(table, "kl", kl).clamp(min=0)
    known = ~moved.isnan()
    yardsticks: dict[str, Tensor] = {}
    if format_classes:
        yardsticks["format"] = torch.tensor([name in format_classes for name in table.token_class], dtype=torch.bool)
    yardsticks |= {"certain": table.logp.double().exp() >= CERTAIN, "dead": _dead(table)}
    yardsticks["any"] = torch.stack(list(yardsticks.values())).any(0)
    shares = {name: _share(moved, where, known) for name, where in yardsticks.items()}
    if value_before is not None and value_after is not None:
        gain = evidence(table, "value_after", value_after) - evidence(table, "value_before", value_before)
        shares["measured"] = _share(moved, gain.abs() < nil, known & ~gain.isnan())
    numbers = {"kl/mean": mean_where(moved, known), "tokens": float(known.sum())}
    for name, row in shares.items():
        numbers |= {f"{name}/tokens": row["token_share"], f"{name}/kl": row["kl_share"]}
    by_class: list[TableRow] = [{"token_class": name, **_share(moved, part, known)} for name, part in class_parts(table).items()]
    return Finding(
        name="tax",
        note=_note(shares),
        numbers=numbers,
        tables={
            "yardsticks": tuple({"yardstick": name, "meaning": MEANING[name], **row} for name, row in shares.items()),
            "by_class": tuple(row for row in by_class if row["tokens"]),
        },
    )


def _dead(table: TokenTable) -> Bool[Tensor, " tok"]:
    """Tokens of groups whose known scores are all equal and which received no credit; some recipes do give credit to such groups."""
    groups, index = table.group.unique(return_inverse=True)
    graded = ~table.score.isnan()

    def extreme(kind: str, empty: float) -> Tensor:
        scores = torch.full((len(groups),), empty, dtype=torch.float64)
        return scores.scatter_reduce(0, index[graded], table.score[graded].double(), kind)

    credited = torch.zeros(len(groups), dtype=torch.bool).index_put_((index[table.credit != 0],), torch.tensor(True))
    return ((extreme("amin", float("inf")) >= extreme("amax", -float("inf"))) & ~credited)[index]


def _share(moved: Tensor, where: Bool[Tensor, " tok"], among: Bool[Tensor, " tok"]) -> dict[str, float | int]:
    total = float(moved[among].sum())
    return {
        "tokens": int((where & among).sum()),
        "token_share": mean_where(where, among),
        "kl_share": float(moved[where & among].sum()) / total if total > 0 else float("nan"),
        "mean_kl": mean_where(moved, where & among),
    }


def _note(shares: dict[str, dict[str, float | int]]) -> str:
    if shares["any"]["kl_share"] != shares["any"]["kl_share"]:
        return "No token's distribution moved, so the tax is unknown."
    parts = [
        f"{percent(row['kl_share'])} by {name!r} ({MEANING[name]}; {percent(row['token_share'])} of tokens)" for name, row in shares.items()
    ]
    return "Share of all KL on tokens whose credit is 0: " + ", ".join(parts) + "."
