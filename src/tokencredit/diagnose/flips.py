"""Token flips: does a token's probability move the way its response's advantage points?"""

from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.diagnose.common import DEAD_BAND, SIDES, class_parts, confidence_parts, count, evidence, mean_where, on_cpu, percent
from tokencredit.diagnose.table import TokenTable
from tokencredit.types import Finding, TableRow

HORIZONS = {"first": "after the first optimizer step", "step": "after the whole training step"}


def flips(
    table: TokenTable, change_first: Float[Tensor, " tok"] | None, change_step: Float[Tensor, " tok"], *, dead_band: float = DEAD_BAND
) -> Finding:
    """Shares of tokens whose measured log-prob rose or fell, by the sign of their response's advantage.

        boosted: change > tau;  suppressed: change < -tau       tau is 0, and once more the dead band
        flip rate = P(suppressed | A > 0) and P(boosted | A < 0)
        similarity = |P(boosted | A > 0) - P(boosted | A < 0)|          0: the two sides move alike

    2605.08666 names the flips; these formulas are a reading. Tables by confidence and by class use the dead band.
    A token without a measured change (NaN) or with A = 0 belongs to no side. Shares of an empty side are NaN.
    """
    if not 0 <= dead_band < float("inf"):
        raise ValueError(f"dead_band is {dead_band}; it must be 0 or more, in nats")
    table = on_cpu(table)
    given = {"first": change_first, "step": change_step}
    changes = {name: evidence(table, f"change_{name}", change) for name, change in given.items() if change is not None}
    numbers = {"dead_band": dead_band, "without_side": float((table.side == 0).sum())}
    matrix: list[TableRow] = []
    for horizon, change in changes.items():
        for band_name, band in (("", 0.0), ("band/", dead_band)):
            rows = {side: _moves(change, table.side == sign, band) for side, sign in SIDES.items()}
            matrix += [{"horizon": horizon, "band": band, "side": side, **row} for side, row in rows.items()]
            for side, row in rows.items():
                numbers |= {f"{horizon}/{band_name}{side}/{move}": row[move] for move in ("boosted", "suppressed")}
                numbers[f"{horizon}/{band_name}{side}/flip"] = row["suppressed" if side == "positive" else "boosted"]
            numbers[f"{horizon}/{band_name}similarity"] = abs(rows["positive"]["boosted"] - rows["negative"]["boosted"])
    return Finding(
        name="flips",
        note=" ".join(
            [
                *(_sentence(horizon, numbers, matrix) for horizon in HORIZONS),
                f"(A token that moved by no more than {dead_band:g} nats did neither.)",
            ]
        ),
        numbers=numbers,
        tables={
            "matrix": tuple(matrix),
            "by_confidence": _by_part(table, changes, "confidence", confidence_parts(table), dead_band),
            "by_class": _by_part(table, changes, "token_class", class_parts(table), dead_band),
        },
    )


def _moves(change: Tensor, chosen: Bool[Tensor, " tok"], band: float) -> dict[str, float | int]:
    chosen = chosen & ~change.isnan()
    return {
        "tokens": int(chosen.sum()),
        "boosted": mean_where(change > band, chosen),
        "suppressed": mean_where(change < -band, chosen),
        "unchanged": mean_where(change.abs() <= band, chosen),
        "mean_change": mean_where(change, chosen),
    }


def _by_part(table: TokenTable, changes: dict[str, Tensor], label: str, parts: dict[str, Tensor], band: float) -> tuple[TableRow, ...]:
    rows = (
        {"horizon": horizon, label: name, "side": side, **_moves(change, part & (table.side == sign), band)}
        for horizon, change in changes.items()
        for name, part in parts.items()
        for side, sign in SIDES.items()
    )
    return tuple(row for row in rows if row["tokens"])


def _sentence(horizon: str, numbers: dict[str, float], matrix: list[TableRow]) -> str:
    tokens = {row["side"]: int(row["tokens"] or 0) for row in matrix if row["horizon"] == horizon}
    when = HORIZONS[horizon].capitalize()
    if not tokens:
        return f"{when}: not measured."
    counts = [
        f"{percent(numbers[f'{horizon}/band/{side}/flip'])} of {count(tokens[side], 'token')} of {side} advantage {moved}"
        if tokens[side]
        else f"no token of {side} advantage was measured"
        for side, moved in (("positive", "fell"), ("negative", "rose"))
    ]
    gap = numbers[f"{horizon}/band/similarity"]
    alike = (
        f"the shares that rose differ by {100 * gap:.1f} points between the sides (0: they move alike)"
        if gap == gap
        else "the sides cannot be compared"
    )
    return f"{when}: {counts[0]}, {counts[1]}; {alike}."
