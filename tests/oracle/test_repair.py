"""IBPO: the repair bonus in exact fractions, what it does to GRPO, and edits against Levenshtein's own table."""

import math
from fractions import Fraction
from random import Random

import pytest
import torch

from tokencredit.advantage.group import grpo_advantage
from tokencredit.config.train import METHODS
from tokencredit.rollout.revision import edit_distance, edited_tokens
from tokencredit.shape import SHAPES, ShapeInputs, repair_bonus

NAN = math.nan


def naive_bonus(score: float, repaired: Fraction, *, weight: Fraction, repair_value: Fraction, correct_above: Fraction) -> Fraction:
    failed = not math.isnan(score) and Fraction(score) <= correct_above
    return weight * repair_value * repaired if failed else Fraction(0)


@pytest.mark.parametrize("correct_above", [Fraction(1, 2), Fraction(0), Fraction(3, 4)])
@pytest.mark.parametrize(
    ("weight", "repair_value"), [(Fraction(3, 5), Fraction(1, 2)), (Fraction(0), Fraction(1)), (Fraction(2), Fraction(1, 4))]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_bonus_in_fractions(weight: Fraction, repair_value: Fraction, correct_above: Fraction, dtype: torch.dtype) -> None:
    scores = [0.0, 1.0, 0.5, 0.75, 0.25, NAN, -1.0, 2.0]
    shares = [Fraction(k, 4) for k in range(5)]
    pairs = [(score, share) for score in scores for share in shares]
    knobs = {"weight": weight, "repair_value": repair_value, "correct_above": correct_above}
    actual = repair_bonus(
        torch.tensor([score for score, _ in pairs], dtype=dtype),
        torch.tensor([float(share) for _, share in pairs], dtype=dtype),
        **{name: float(number) for name, number in knobs.items()},
    )
    assert actual.tolist() == pytest.approx([float(naive_bonus(score, share, **knobs)) for score, share in pairs], rel=1e-14, abs=0)


def test_the_published_numbers_by_hand() -> None:
    """A failure repaired with every reference is worth 0.6 x 0.5 = 0.3, with one of two 0.15; a success gets nothing on top."""
    score, repaired = torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([1.0, 0.5, 0.0, 1.0])
    assert repair_bonus(score, repaired).tolist() == pytest.approx([0.3, 0.15, 0.0, 0.0], rel=1e-14)
    stage = SHAPES["ibpo"](ShapeInputs(score, torch.full((4,), 9), 16, repaired=repaired), weight=0.6, repair_value=0.5, correct_above=0.5)
    assert torch.equal(stage, repair_bonus(score, repaired))
    assert METHODS["shape"]["ibpo"].needs.keys() == {"revisions"}


@pytest.mark.parametrize("wrong", [-0.1, 1.1, NAN, math.inf])
def test_a_share_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="repaired must be a share of references between 0 and 1"):
        repair_bonus(torch.tensor([0.0, 1.0]), torch.tensor([0.5, wrong]))


def test_revisions_missing() -> None:
    with pytest.raises(ValueError, match="repaired is missing"):
        SHAPES["ibpo"](ShapeInputs(torch.zeros(2), torch.ones(2, dtype=torch.long), 8), weight=0.6, repair_value=0.5, correct_above=0.5)


def mixed_groups(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = Random(seed)
    score = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, *[draw.choice([0.0, 1.0, NAN]) for _ in range(10)]]
    group = [0, 0, 0, 1, 1, 1, *[draw.randrange(2) for _ in range(10)]]
    return torch.tensor(score, dtype=torch.float64), torch.tensor(group)


@pytest.mark.parametrize("seed", range(5))
def test_weight_zero_is_grpo(seed: int) -> None:
    score, group = mixed_groups(seed)
    repaired = torch.rand(len(score), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    bonus = repair_bonus(score, repaired, weight=0.0)
    assert not bonus.any()
    assert torch.equal(grpo_advantage(score + bonus, group), grpo_advantage(score, group))


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_failures_that_are_all_alike_leave_grpo_alone(seed: int, share: float) -> None:
    """The shaped reward is then an affine map of the score: only differences between failures act."""
    score, group = mixed_groups(seed)
    shaped = score + repair_bonus(score, torch.full_like(score, share))
    torch.testing.assert_close(grpo_advantage(shaped, group, epsilon=0.0), grpo_advantage(score, group, epsilon=0.0), rtol=0, atol=1e-12)


def test_differences_between_failures_act() -> None:
    score, group = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    shaped = score + repair_bonus(score, torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    repairable, hopeless = grpo_advantage(shaped, group)[1:3].tolist()
    assert repairable > hopeless == pytest.approx(grpo_advantage(shaped, group)[3])
    assert grpo_advantage(score, group)[1] == grpo_advantage(score, group)[2]


def test_an_all_wrong_group_speaks() -> None:
    score, group = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    assert not grpo_advantage(score, group).any()
    shaped = score + repair_bonus(score, torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64))
    # Rewards 0.3, 0.15, 0: mean 0.15, sample standard deviation 0.15.
    assert grpo_advantage(shaped, group, epsilon=0.0).tolist() == pytest.approx([1.0, 0.0, -1.0], abs=1e-12)
    alike = score + repair_bonus(score, torch.full_like(score, 0.5))
    assert not grpo_advantage(alike, group).any()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("successes", [1, 3, 7])
def test_a_common_bonus_shrinks_the_variance(successes: int, share: float) -> None:
    """Var R' = (1 - lambda s)^2 p (1 - p), with s = repair_value x the share repaired."""
    score = torch.tensor([1.0] * successes + [0.0] * (10 - successes), dtype=torch.float64)
    p, s = successes / 10, 0.5 * share
    shaped = score + repair_bonus(score, torch.full_like(score, share), weight=0.6, repair_value=0.5)
    assert float(shaped.var(correction=0)) == pytest.approx((1 - 0.6 * s) ** 2 * p * (1 - p), rel=1e-12)


def naive_distance(before: list[int], after: list[int]) -> int:
    """Levenshtein's table, cell by cell."""
    table = [[max(i, j) if not (i and j) else 0 for j in range(len(after) + 1)] for i in range(len(before) + 1)]
    for i, old in enumerate(before, 1):
        for j, new in enumerate(after, 1):
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (old != new))
    return table[-1][-1]


def is_subsequence(part: list[int], whole: list[int]) -> bool:
    at = iter(whole)
    return all(token in at for token in part)


def revision_pairs() -> list[tuple[list[int], list[int]]]:
    draw = Random(4)
    pairs = [
        ([draw.randrange(4) for _ in range(draw.randint(0, 9))], [draw.randrange(4) for _ in range(draw.randint(0, 9))]) for _ in range(300)
    ]
    for _ in range(150):
        before = [draw.randrange(50_000) for _ in range(draw.randint(1, 30))]
        after = list(before)
        for _ in range(draw.randint(0, 4)):
            at = draw.randint(0, len(after))
            after[at : at + draw.randint(0, 2)] = [draw.randrange(50_000) for _ in range(draw.randint(0, 2))]
        pairs.append((before, after))
    return pairs


def test_distances_are_those_of_the_table() -> None:
    for before, after in revision_pairs():
        assert edit_distance(before, after) == naive_distance(before, after)


def test_marks_are_those_of_a_shortest_alignment() -> None:
    """Alignments are not unique, but of any: unmarked tokens survive in order, and each edit marks one token at most."""
    for before, after in revision_pairs():
        marks = edited_tokens(before, after)
        distance = naive_distance(before, after)
        assert len(marks) == len(before)
        assert is_subsequence([token for token, marked in zip(before, marks, strict=True) if not marked], after)
        assert sum(marks) <= distance
        assert sum(marks) >= max(len(before) - len(after), 0)
        assert any(marks) == (before != after and bool(before))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], [False, False, False]),
        ([1, 2, 3], [1, 9, 3], [False, True, False]),
        ([1, 2, 3], [1, 3], [False, True, False]),
        ([1, 2, 3], [1, 9, 2, 3], [False, True, False]),
        ([1, 2, 3], [9, 1, 2, 3], [True, False, False]),
        ([1, 2, 3], [1, 2, 3, 9, 9], [False, False, True]),
        ([1, 2, 3], [], [True, True, True]),
        ([], [1, 2], []),
        ([], [], []),
        ((70_000, 2, 3), (70_000, 2, 4), [False, False, True]),
    ],
)
def test_marks_by_hand(before: list[int], after: list[int], expected: list[bool]) -> None:
    assert edited_tokens(before, after) == expected
