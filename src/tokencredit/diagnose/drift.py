"""Solution-probability drift: how much an update changes the odds between equally scored responses to one prompt."""

import math
from itertools import combinations
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from tokencredit.diagnose.common import count, evidence, on_cpu
from tokencredit.diagnose.table import TokenTable
from tokencredit.types import Finding, TableRow


class _Response(NamedTuple):
    group: int
    score: float
    tokens: tuple[int, ...]
    change: float


class _Pair(NamedTuple):
    group: int
    score: float | None
    """The score of both responses; None if the scores differ."""
    move: float
    """Change of log-odds; of the better response over the worse one if the scores differ."""


def drift(table: TokenTable, change: Float[Tensor, " tok"], *, source: str = "batch") -> Finding:
    """Change of log(pi(y_a) / pi(y_b)) over pairs of different responses to one prompt; `source` names where they come from.

        log pi(y) moves by the sum of its tokens' changes;  equal score: mean |move| and root mean square
        unequal score, better minus worse: mean (signed: the wanted movement), mean |move|, root mean square
        ratio = mean |move| at equal score / mean |move| at unequal score

    2604.13088v1 names the drift; its Eq. 5 ties it to differences of coefficients, which does not hold in general, so it is measured here
    and never derived. Responses with the same tokens form no pair; one without score, or with an unmeasured token, is left out.
    """
    table = on_cpu(table)
    responses = _responses(table, evidence(table, "change", change))
    by_group: dict[int, list[_Response]] = {}
    for response in responses:
        by_group.setdefault(response.group, []).append(response)
    pairs = [pair for siblings in by_group.values() for pair in _pairs(siblings)]
    equal = [pair for pair in pairs if pair.score is not None]
    unequal = [pair for pair in pairs if pair.score is None]
    numbers = {"responses": float(len(responses)), "unequal/mean": _mean([pair.move for pair in unequal])}
    for kind, chosen in (("equal", equal), ("unequal", unequal)):
        numbers |= {f"{kind}/{name}": float(value) for name, value in _moved(chosen).items()}
        numbers[f"{kind}/groups"] = float(len({pair.group for pair in chosen}))
    wanted = numbers["unequal/absolute"]
    numbers["ratio"] = numbers["equal/absolute"] / wanted if wanted > 0 else float("nan")
    scores = sorted({pair.score for pair in pairs if pair.score is not None})
    by_score: list[TableRow] = [{"score": score, **_moved([pair for pair in equal if pair.score == score])} for score in scores]
    return Finding(
        name="drift" if source == "batch" else f"drift-{source}",
        note=_note(source, numbers),
        numbers=numbers,
        tables={
            "by_score": tuple(by_score),
            "by_group": tuple(_group_row(group, siblings) for group, siblings in sorted(by_group.items())),
        },
    )


def _responses(table: TokenTable, change: Tensor) -> list[_Response]:
    """Each response's tokens in order of position, for any order of the table."""
    places: dict[int, list[tuple[int, int]]] = {}
    for place, (row, position) in enumerate(zip(table.row.tolist(), table.position.tolist(), strict=True)):
        places.setdefault(row, []).append((position, place))
    tokens, changes, groups, scores = table.token.tolist(), change.tolist(), table.group.tolist(), table.score.tolist()
    responses = []
    for row in sorted(places):
        at = [place for _, place in sorted(places[row])]
        moved = math.fsum(changes[place] for place in at)
        responses.append(_Response(groups[at[0]], scores[at[0]], tuple(tokens[place] for place in at), moved))
    return [response for response in responses if not math.isnan(response.score + response.change)]


def _pairs(siblings: list[_Response]) -> list[_Pair]:
    pairs = []
    for one, two in combinations(sorted(siblings, key=lambda response: -response.score), 2):
        if one.tokens != two.tokens:
            pairs.append(_Pair(one.group, one.score if one.score == two.score else None, one.change - two.change))
    return pairs


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else float("nan")


def _moved(pairs: list[_Pair]) -> dict[str, float | int]:
    moves = [pair.move for pair in pairs]
    return {"pairs": len(pairs), "absolute": _mean([abs(move) for move in moves]), "rms": math.sqrt(_mean([move**2 for move in moves]))}


def _group_row(group: int, siblings: list[_Response]) -> TableRow:
    pairs = _pairs(siblings)
    equal, unequal = ([pair for pair in pairs if (pair.score is None) == differ] for differ in (False, True))
    return {
        "group": group,
        "responses": len(siblings),
        "equal_pairs": len(equal),
        "equal_absolute": _moved(equal)["absolute"],
        "unequal_pairs": len(unequal),
        "unequal_mean": _mean([pair.move for pair in unequal]),
    }


def _note(source: str, numbers: dict[str, float | int]) -> str:
    equal, unequal = int(numbers["equal/pairs"]), int(numbers["unequal/pairs"])
    start = f"Among {source} responses, "
    if equal:
        start += (
            f"{count(equal, 'pair')} of different, equally scored ones to one prompt: "
            f"log-odds moved by {numbers['equal/absolute']:.4f} nats on average."
        )
    else:
        start += "no two different ones to one prompt have equal scores, so drift is unknown."
    if not unequal:
        return f"{start} No pair of unequal score to compare with."
    return (
        f"{start} In {count(unequal, 'pair')} of unequal score the better response moved by {numbers['unequal/mean']:+.4f} nats "
        f"against the worse one (mean size {numbers['unequal/absolute']:.4f})."
    )
