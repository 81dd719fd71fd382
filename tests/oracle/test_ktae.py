"""KTAE against exact tests in fractions and plain loops over siblings and token ids."""

import math
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import pytest
import torch

from tokencredit.credit import CREDITS, CreditInputs
from tokencredit.credit.ktae import fisher_p_value, information_gain

NAN = math.nan
Table = tuple[int, int, int, int]


def exact_p_value(a: int, b: int, c: int, d: int) -> Fraction:
    """Walks over every table with these margins and compares probabilities as integers over one denominator."""
    row, column, other = a + b, a + c, b + d

    def ways(k: int) -> int:
        return math.comb(column, k) * math.comb(other, row - k) if 0 <= k <= row else 0

    return Fraction(sum(ways(k) for k in range(row + 1) if ways(k) <= ways(a)), math.comb(column + other, row))


def entropy_in_bits(*counts: int) -> float:
    total = sum(counts)
    return -sum(n / total * math.log2(n / total) for n in counts if n)


def naive_gain(a: int, b: int, c: int, d: int) -> float:
    """Entropy of correctness, less its mean entropy given presence."""
    n = a + b + c + d
    if n == 0:
        return 0.0
    return entropy_in_bits(a + c, b + d) - (a + b) / n * entropy_in_bits(a, b) - (c + d) / n * entropy_in_bits(c, d)


def columns(tables: list[Table]) -> list[torch.Tensor]:
    return [torch.tensor(column, dtype=torch.float64) for column in zip(*tables, strict=True)]


SMALL_TABLES = [table for table in product(range(7), repeat=4) if sum(table) <= 12]
LARGE_TABLES: list[Table] = [tuple(Random(seed).choices(range(40), k=4)) for seed in range(200)]


@pytest.mark.parametrize("tables", [SMALL_TABLES, LARGE_TABLES], ids=["small", "large"])
def test_fisher_is_exact_on_every_table(tables: list[Table]) -> None:
    actual = fisher_p_value(*columns(tables)).tolist()
    exact = [exact_p_value(*table) for table in tables]
    assert actual == pytest.approx([float(p) for p in exact], rel=1e-9, abs=1e-300)
    assert [p == 1.0 for p in actual] == [p == 1 for p in exact]


def test_fishers_tea_by_hand() -> None:
    """Three of four cups told right: 16 + 16 + 1 + 1 ways of 70 are no likelier. All four: 2 of 70."""
    assert fisher_p_value(*columns([(3, 1, 1, 3), (4, 0, 0, 4), (2, 2, 2, 2)])).tolist() == pytest.approx([34 / 70, 2 / 70, 1.0], rel=1e-12)


@pytest.mark.parametrize("tables", [SMALL_TABLES, LARGE_TABLES], ids=["small", "large"])
def test_information_gain_is_a_difference_of_entropies(tables: list[Table]) -> None:
    actual = information_gain(*columns(tables)).tolist()
    assert actual == pytest.approx([naive_gain(*table) for table in tables], rel=1e-9, abs=1e-12)
    independent = [a * d == b * c for a, b, c, d in tables]
    assert [gain == 0.0 for gain in actual] == independent


def test_statistics_of_no_table() -> None:
    nothing = columns([(1, 1, 1, 1)])
    assert fisher_p_value(*[column[:0] for column in nothing]).tolist() == []
    assert information_gain(*[column[:0] for column in nothing]).tolist() == []


DEFAULTS = {"fisher_weight": 1.0, "gain_weight": 1.0, "top": 1.0, "saturation": 2.0, "length_share": 0.5, "correct_above": 0.5}


def naive_key(token: int, correct: list[list[int]], wrong: list[list[int]], knobs: dict[str, float]) -> float:
    """Of one token id in one group, whose responses are given as lists of token ids."""
    if not correct or not wrong:
        return 0.0
    a, b = sum(token in response for response in correct), sum(token in response for response in wrong)
    c, d = len(correct) - a, len(wrong) - b
    p = exact_p_value(a, b, c, d)
    significance = 0.0 if p == 1 else math.exp(-2 * float(p))
    lengths = [sum(len(response) for response in side) for side in (correct, wrong)]
    frequencies = []
    for side, length in zip((correct, wrong), lengths, strict=True):
        uses = sum(response.count(token) for response in side)
        if uses == 0:
            frequencies.append(0.0)
            continue
        share = uses / length
        slow = knobs["saturation"] * (1 - knobs["length_share"] + knobs["length_share"] * length / (sum(lengths) / 2))
        frequencies.append(share * (knobs["saturation"] + 1) / (share + slow))
    in_correct, in_wrong = frequencies
    direction = math.asin(math.sqrt(a / (a + c))) - math.asin(math.sqrt(b / (b + d)))
    direction += in_correct / (in_wrong + 1e-5) - in_wrong / (in_correct + 1e-5)
    weighed = knobs["fisher_weight"] * significance + knobs["gain_weight"] * naive_gain(a, b, c, d)
    exponent = weighed * direction / (knobs["fisher_weight"] + knobs["gain_weight"])
    logistic = 1 / (1 + math.exp(-exponent)) if exponent > -700 else 0.0
    return 2 * knobs["top"] * (logistic - 0.5)


def naive_ktae(inputs: CreditInputs, knobs: dict[str, float]) -> list[list[float]]:
    assert inputs.score is not None
    score, group, advantage = inputs.score.tolist(), inputs.group.tolist(), inputs.advantage.tolist()
    tokens, mask = inputs.tokens.tolist(), inputs.mask.tolist()
    written = [[token for token, held in zip(row, holds, strict=True) if held] for row, holds in zip(tokens, mask, strict=True)]
    credit = [[0.0] * len(row) for row in tokens]
    for i, row in enumerate(tokens):
        if math.isnan(score[i]):
            continue
        siblings = [j for j in range(len(tokens)) if group[j] == group[i] and not math.isnan(score[j])]
        correct = [written[j] for j in siblings if score[j] > knobs["correct_above"]]
        wrong = [written[j] for j in siblings if score[j] <= knobs["correct_above"]]
        for t, token in enumerate(row):
            if mask[i][t]:
                credit[i][t] = advantage[i] + (0.0 if token in inputs.end_tokens else naive_key(token, correct, wrong, knobs))
    return credit


def made_up_inputs(seed: int, dtype: torch.dtype = torch.float64, *, rows: int = 14, width: int = 9, vocabulary: int = 6) -> CreditInputs:
    """Scattered groups, among them one that is all right, one all wrong, one alone; ungraded rows, a row without tokens, holes."""
    draw = Random(seed)
    group = [draw.choice([-7, 3, 3, 3, 40]) for _ in range(rows)]
    score = [draw.choice([0.0, 1.0, 0.0, 1.0, NAN, 0.25, 0.75]) for _ in range(rows)]
    group[:6], score[:6] = [100, 100, 200, 200, 300, 3], [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    lengths = [draw.randint(1, width) for _ in range(rows)]
    lengths[5] = 0
    mask = [[column < length and draw.random() > 0.15 for column in range(width)] for length in lengths]
    tokens = [[draw.randrange(vocabulary) * 11 + 2 if held else -1 for held in row] for row in mask]
    shape = (rows, width)
    return CreditInputs(
        advantage=torch.tensor([draw.choice([-1.0, 0.0, 0.5]) * (s == s) for s in score], dtype=dtype),
        mask=torch.tensor(mask),
        group=torch.tensor(group),
        tokens=torch.tensor(tokens),
        logp=torch.full(shape, NAN, dtype=dtype),
        entropy=torch.full(shape, NAN, dtype=dtype),
        seed=seed,
        score=torch.tensor(score, dtype=dtype),
        end_tokens=(2, 999),
    )


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"fisher_weight": 0.0},
        {"gain_weight": 0.0},
        {"fisher_weight": 3.0, "gain_weight": 0.5, "top": 0.25},
        {"saturation": 0.0},
        {"saturation": 0.3, "length_share": 1.0},
        {"length_share": 0.0},
        {"correct_above": 0.0},
        {"correct_above": 0.8},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_equals_the_naive_twin(knobs: dict[str, Any], dtype: torch.dtype) -> None:
    for seed in range(4):
        inputs = made_up_inputs(seed, dtype)
        outcome = CREDITS["ktae"](inputs, {"kept": 1}, **knobs)
        expected = torch.tensor(naive_ktae(inputs, DEFAULTS | knobs), dtype=torch.float64)
        torch.testing.assert_close(outcome.credit, expected.to(dtype), rtol=1e-5 if dtype == torch.float32 else 1e-9, atol=1e-9)
        assert outcome.coefficient is None
        assert outcome.state == {"kept": 1}


def test_equals_the_naive_twin_where_sides_are_even() -> None:
    """Long responses over few ids, so that keys lie well inside (-top, top) and the frequencies decide."""
    for seed in range(4):
        inputs = made_up_inputs(seed, rows=16, width=30, vocabulary=9)
        inputs = inputs._replace(group=torch.tensor([8] * 16))
        credit = CREDITS["ktae"](inputs, {}).credit
        torch.testing.assert_close(credit, torch.tensor(naive_ktae(inputs, DEFAULTS), dtype=torch.float64), rtol=1e-9, atol=1e-9)
        key = (credit - inputs.advantage[:, None])[inputs.mask & ~inputs.score.isnan()[:, None]]
        assert ((key.abs() > 1e-3) & (key.abs() < 0.9)).any()


def test_two_against_two_by_hand() -> None:
    """Id 5 in both successes and one failure, id 6 in one of each, id 8 in one failure only, id 9 the end of every response."""
    inputs = CreditInputs(
        advantage=torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64),
        mask=torch.tensor([[True, True, True], [True, True, False], [True, True, True], [True, True, False]]),
        group=torch.zeros(4, dtype=torch.long),
        tokens=torch.tensor([[5, 6, 9], [5, 9, 0], [5, 6, 9], [8, 9, 0]]),
        logp=torch.zeros(4, 3, dtype=torch.float64),
        entropy=torch.zeros(4, 3, dtype=torch.float64),
        seed=0,
        score=torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64),
        end_tokens=(9,),
    )
    # Fisher says nothing of any id (p = 1). Id 5 tells 1 - 3/4 H(2/3) bits. Both sides hold 5 tokens, so a share f saturates to
    # 3 f / (f + 2): two uses of five make 1/2, one makes 3/11. Id 8 is in failures only, and its key saturates.
    gain = 1 - 3 / 4 * (-2 / 3 * math.log2(2 / 3) - 1 / 3 * math.log2(1 / 3))
    direction = math.pi / 2 - math.pi / 4 + (1 / 2) / (3 / 11 + 1e-5) - (3 / 11) / (1 / 2 + 1e-5)
    five = 2 / (1 + math.exp(-gain / 2 * direction)) - 1
    assert 0.1 < five < 0.2
    expected = [*(1 + five, 1.0, 1.0), *(1 + five, 1.0, 0.0), *(-1 + five, -1.0, -1.0), *(-2.0, -1.0, 0.0)]
    assert CREDITS["ktae"](inputs, {}).credit.flatten().tolist() == pytest.approx(expected, rel=1e-12)


def test_a_batch_in_which_nothing_could_be_graded_receives_nothing() -> None:
    inputs = made_up_inputs(1)
    credit = CREDITS["ktae"](inputs._replace(score=torch.full_like(inputs.score, NAN), advantage=inputs.advantage + 1), {}).credit
    assert not credit.any()


def test_a_mistake_is_named() -> None:
    inputs = made_up_inputs(0)
    with pytest.raises(ValueError, match="score is missing"):
        CREDITS["ktae"](inputs._replace(score=None), {})
    with pytest.raises(ValueError, match=r"fisher_weight is 0.0 and gain_weight is 0.0; one of them must be above 0"):
        CREDITS["ktae"](inputs, {}, fisher_weight=0.0, gain_weight=0.0)
