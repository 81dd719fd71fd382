"""Sibling credit against a twin that asks every sibling about every place, one at a time."""

import math
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Any

import pytest
import torch

from tokencredit.credit import CREDITS, CreditInputs
from tokencredit.credit.features import DeviceFeatures

Place = tuple[int, int]
WIDTH, COLUMNS, VOCABULARY = 3, 7, 3


def made_up_inputs(seed: int, dtype: torch.dtype = torch.float64) -> CreditInputs:
    """Scattered groups, one of one and one without spread; an ungraded row, one without tokens, one whose advantage is 0; holes."""
    draw = Random(seed)
    group = [6, 6, 6, 6, 6, 2, 2, 2, 9, 4, 4, 6]
    advantage = [1.0, -0.5, 1.5, -1.0, 0.0, 0.7, -0.7, 0.7, 2.0, 0.0, 0.0, -1.0]
    score = [1.0, 0.0, 1.0, 0.0, 0.5, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    advantage[7], score[7] = 0.0, math.nan
    rows = len(group)
    order = draw.sample(range(rows), rows)
    lengths = [draw.randint(2, COLUMNS) for _ in range(rows)]
    lengths[11] = 0
    mask = [[column < length and draw.random() > 0.15 for column in range(COLUMNS)] for length in lengths]
    # Few different states, so that some places are exactly alike and others far apart.
    states = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    which = torch.tensor([[draw.randrange(5) for _ in range(COLUMNS)] for _ in range(rows)])
    hidden = states[which] + 0.1 * torch.randn(rows, COLUMNS, WIDTH, generator=torch.Generator().manual_seed(seed + 1), dtype=dtype)
    return CreditInputs(
        advantage=torch.tensor(advantage, dtype=dtype)[order],
        mask=torch.tensor(mask)[order],
        group=torch.tensor(group)[order],
        tokens=torch.tensor([[draw.randrange(VOCABULARY) for _ in range(COLUMNS)] for _ in range(rows)])[order],
        logp=torch.full((rows, COLUMNS), math.nan, dtype=dtype),
        entropy=torch.full((rows, COLUMNS), math.nan, dtype=dtype),
        seed=seed,
        hidden=hidden[order],
        score=torch.tensor(score, dtype=dtype)[order],
    )


def places_of(inputs: CreditInputs) -> dict[int, list[int]]:
    """Columns of the tokens of every graded response that has some."""
    assert inputs.score is not None
    graded = (~inputs.score.isnan()).tolist()
    found = {row: [t for t, held in enumerate(mask) if held] for row, mask in enumerate(inputs.mask.tolist())}
    return {row: columns for row, columns in found.items() if columns and graded[row]}


def by_hidden(inputs: CreditInputs, members: list[int], *, width: float, metric: str) -> Callable[[Place, Place], float]:
    assert isinstance(inputs.hidden, torch.Tensor)
    places = places_of(inputs)

    def state(place: Place) -> list[float]:
        found = inputs.hidden[place].tolist()  # pyright: ignore[reportOptionalSubscript]
        size = math.sqrt(sum(x * x for x in found)) if metric == "cosine" else 1.0
        return [x / size for x in found]

    def squared(one: Place, other: Place) -> float:
        return sum((a - b) ** 2 for a, b in zip(state(one), state(other), strict=True))

    everywhere = [(row, t) for row in members for t in places[row]]
    apart = sorted(squared(one, other) for one in everywhere for other in everywhere if one[0] != other[0])
    middle = apart[(len(apart) - 1) // 2]
    assert middle == pytest.approx(median(apart), rel=0.5)
    return lambda one, other: math.exp(-squared(one, other) / (2 * width**2 * middle))


def by_context(inputs: CreditInputs, members: list[int], *, ngram: int, backoff: float) -> Callable[[Place, Place], float]:
    tokens = inputs.tokens.tolist()

    def before(place: Place, back: int) -> int | str:
        row, t = place
        return tokens[row][t - back] if t >= back else "prompt"

    def alike(one: Place, other: Place) -> float:
        matched = 0
        while matched < ngram and before(one, matched + 1) == before(other, matched + 1):
            matched += 1
        return backoff ** (ngram - matched) if matched else 0.0

    return alike


def naive_credit(
    inputs: CreditInputs,
    likeness: Callable[..., Callable[[Place, Place], float]],
    *,
    after: str,
    position_width: float | None,
    shrinkage: float,
    normalize: bool,
    **knobs: Any,
) -> list[list[float]]:
    advantage, group, tokens = inputs.advantage.double().tolist(), inputs.group.tolist(), inputs.tokens.tolist()
    places = places_of(inputs)
    credit = [[a if held else 0.0 for held in row] for a, row in zip(advantage, inputs.mask.tolist(), strict=True)]
    for name in sorted(set(group)):
        members = [row for row in places if group[row] == name]
        if len(members) < 2 or not any(advantage[row] for row in members):
            continue
        alike, longest = likeness(inputs, members, **knobs), max(len(places[row]) for row in members)

        def weight(i: int, t: int, j: int, same: bool, alike: Any = alike, longest: int = longest) -> float:
            found = [0.0]
            for s, column in enumerate(places[j]):
                near = 1.0 if position_width is None else math.exp(-(((t - s) / (position_width * longest)) ** 2) / 2)
                if not same or tokens[i][places[i][t]] == tokens[j][column]:
                    found.append(near * alike((i, places[i][t]), (j, column)))
            return max(found)

        def said(i: int, t: int, same: bool, members: list[int] = members, weight: Any = weight) -> dict[int, float]:
            return {j: weight(i, t, j, same) for j in members if j != i}

        squares = []
        for i in members:
            for t in range(len(places[i])):
                words = said(i, t, False)
                n = sum(words.values())
                if n > 0:
                    value = sum(w * advantage[j] for j, w in words.items()) / n
                    squares.append((advantage[i] - value) ** 2 * n / (n + 1))
        noise = sum(squares) / len(squares) if squares else 0.0
        mean = sum(advantage[row] for row in members) / len(members)
        signal = sum((advantage[row] - mean) ** 2 for row in members) / len(members)
        for i in members:
            for t, column in enumerate(places[i]):
                words, ends = said(i, t, False), after == "next" and t + 1 == len(places[i])
                later = {} if ends else said(i, t, True) if after == "token" else said(i, t + 1, False)
                n, m = sum(words.values()), sum(later.values())
                if n == 0 or (m == 0 and not ends) or signal == 0:
                    continue
                value = sum(w * advantage[j] for j, w in words.items()) / n
                then = advantage[i] if ends else sum(w * advantage[j] for j, w in later.items()) / m
                unsure = 1 / n if ends else 1 / n + 1 / m - 2 * sum(w / n * later[j] / m for j, w in words.items())
                trust = signal / (signal + shrinkage * noise * max(unsure, 0.0))
                if advantage[i] != 0:
                    credit[i][column] = (1 - trust) * advantage[i] + trust * (then - value)
    if normalize:
        uniform = sum(abs(a) * sum(row) for a, row in zip(advantage, inputs.mask.tolist(), strict=True))
        size = sum(abs(value) for row in credit for value in row)
        credit = [[value * uniform / size for value in row] for row in credit]
    return credit


PLAIN: dict[str, Any] = {"after": "token", "position_width": None, "shrinkage": 1.0, "normalize": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "next place": {"after": "next"},
    "near places": {"position_width": 0.3},
    "next place, near": {"after": "next", "position_width": 0.2},
    "half as shy": {"shrinkage": 0.5, "normalize": False},
    "every value is trusted": {"shrinkage": 0.0, "after": "next"},
}
KERNELS: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
    ("sibling-value", by_hidden, {"width": 0.25, "metric": "euclid"}),
    ("sibling-value", by_hidden, {"width": 0.6, "metric": "cosine"}),
    ("sibling-context", by_context, {"ngram": 3, "backoff": 0.25}),
    ("sibling-context", by_context, {"ngram": 1, "backoff": 0.0}),
    ("sibling-context", by_context, {"ngram": 5, "backoff": 0.0}),
]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize(("name", "likeness", "kernel"), KERNELS, ids=[f"{name} {kernel}" for name, _, kernel in KERNELS])
def test_equals_the_naive_twin(name: str, likeness: Any, kernel: dict[str, Any], variant: dict[str, Any]) -> None:
    for seed in range(3):
        inputs = made_up_inputs(seed)
        outcome = CREDITS[name](inputs, {"kept": 1}, **(PLAIN | variant | kernel))
        expected = torch.tensor(naive_credit(inputs, likeness, **(PLAIN | variant | kernel)), dtype=torch.float64)
        torch.testing.assert_close(outcome.credit, expected, rtol=1e-7, atol=1e-9)
        assert outcome.state == {"kept": 1}
        assert not torch.allclose(outcome.credit, CREDITS["uniform"](inputs, {}).credit)


@pytest.mark.parametrize("name", ["sibling-value", "sibling-context"])
def test_float32_is_float64_rounded(name: str) -> None:
    inputs = made_up_inputs(4)
    assert isinstance(inputs.hidden, torch.Tensor)
    halved = inputs._replace(advantage=inputs.advantage.float(), hidden=inputs.hidden.float())
    wide, narrow = (CREDITS[name](given, {}).credit for given in (inputs, halved))
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-3, atol=1e-4)


def test_a_source_of_features_is_read_like_padded_ones() -> None:
    inputs = made_up_inputs(5)
    assert isinstance(inputs.hidden, torch.Tensor)
    packed = inputs._replace(hidden=DeviceFeatures(inputs.hidden[inputs.mask], chunk=5))
    assert torch.equal(CREDITS["sibling-value"](packed, {}).credit, CREDITS["sibling-value"](inputs, {}).credit)


def test_a_wrong_digit_by_hand() -> None:
    """Four responses write 5, then 6 (right) or 7 (wrong), then 9. Only the second token tells: 5 and 9 were written by all alike."""
    inputs = CreditInputs(
        advantage=torch.tensor([1.0, 1.0, -1.0, -1.0]),
        mask=torch.ones(4, 3, dtype=torch.bool),
        group=torch.zeros(4, dtype=torch.long),
        tokens=torch.tensor([[5, 6, 9], [5, 6, 9], [5, 7, 9], [5, 7, 9]]),
        logp=torch.zeros(4, 3),
        entropy=torch.zeros(4, 3),
        seed=0,
    )
    credit = CREDITS["sibling-context"](inputs, {}, ngram=1, shrinkage=0.0, normalize=False).credit
    # Of the second token: the sibling with the same one has +-1, all three siblings have -+1/3.
    expected = torch.tensor([[0.0, 4 / 3, 0.0], [0.0, 4 / 3, 0.0], [0.0, -4 / 3, 0.0], [0.0, -4 / 3, 0.0]])
    torch.testing.assert_close(credit, expected)
    scaled = CREDITS["sibling-context"](inputs, {}, ngram=1, shrinkage=0.0).credit
    torch.testing.assert_close(scaled, 9 / 4 * expected)
