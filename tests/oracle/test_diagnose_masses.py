"""Gradient masses, dead and effective groups and the contrast of centroids, against loops and answers worked out on paper."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tokencredit.advantage import ADVANTAGES, AdvantageInputs
from tokencredit.credit.delta.vectors import DenseVectors, HeadVectors
from tokencredit.diagnose.masses import SOLVE_RATES, centroid_contrast, effective_groups, masses

NAN = math.nan


def naive_bucket(rate: Fraction) -> str:
    if rate in (0, 1):
        return str(rate)
    for name, top in (("(0, 0.25]", Fraction(1, 4)), ("(0.25, 0.5]", Fraction(1, 2)), ("(0.5, 0.75]", Fraction(3, 4))):
        if rate <= top:
            return name
    return "(0.75, 1)"


def naive_masses(advantage: Tensor, score: Tensor, group: Tensor, credit: Tensor, mask: Tensor) -> list[dict]:
    found = []
    for name in sorted(set(group.tolist())):
        rows = [row for row in range(len(group)) if int(group[row]) == name and not math.isnan(float(score[row]))]
        up = down = 0.0
        for row in rows:
            for column in range(mask.shape[1]):
                if bool(mask[row, column]):
                    up += max(float(credit[row, column]), 0.0)
                    down += max(-float(credit[row, column]), 0.0)
        found.append(
            {
                "graded": len(rows),
                "dead": len({float(score[row]) for row in rows}) < 2 and all(float(advantage[row]) == 0 for row in rows),
                "rate": Fraction(sum(float(score[row]) >= 1 for row in rows), len(rows)) if rows else None,
                "success": sum(max(float(advantage[row]), 0.0) for row in rows),
                "failure": sum(max(-float(advantage[row]), 0.0) for row in rows),
                "up": up,
                "down": down,
            }
        )
    return found


def make_case(seed: int, rows: int = 40) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Groups of unequal size, one never graded, one of one response, one all alike; scores of three values; padding holds rubbish."""
    draw = torch.Generator().manual_seed(seed)
    group = torch.randint(9, (rows,), generator=draw) * 7 - 3
    score = torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0, NAN], dtype=torch.float64)[torch.randint(6, (rows,), generator=draw)]
    score[group == group[0]] = NAN
    score[group == group[1]] = 1.0
    group[-1], score[-1] = 999, 1.0
    advantage = torch.randn(rows, generator=draw, dtype=torch.float64) * (group != group[1])
    mask = torch.rand(rows, 5, generator=draw) < 0.7
    credit = (advantage[:, None] * torch.rand(rows, 5, generator=draw) + 0.2 * torch.randn(rows, 5, generator=draw)).where(mask, NAN)
    return advantage, score, group, credit, mask


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else NAN


@pytest.mark.parametrize("seed", range(4))
def test_masses_of_every_group_and_difficulty(seed: int) -> None:
    case = make_case(seed)
    naive = naive_masses(*case)
    finding = masses(*case)
    graded = [group for group in naive if group["graded"]]
    total = sum(group["up"] + group["down"] for group in naive)
    numbers = finding.numbers
    success, failure = (mean([group[side] / group["graded"] for group in graded]) for side in ("success", "failure"))
    assert numbers["success_mass"] == pytest.approx(success)
    assert numbers["failure_mass"] == pytest.approx(failure)
    assert numbers["success_share"] == pytest.approx(success / (success + failure))
    assert numbers["token_positive"] == pytest.approx(sum(group["up"] for group in naive))
    assert numbers["token_negative"] == pytest.approx(sum(group["down"] for group in naive))
    assert numbers["token_positive_share"] == pytest.approx(sum(group["up"] for group in naive) / total)
    assert numbers["groups"] == len(naive) > len(graded)
    assert numbers["dead_groups"] == pytest.approx(mean([group["dead"] for group in naive]))
    weights = [group["success"] + group["failure"] for group in naive]
    assert numbers["effective_groups"] == pytest.approx(sum(weights) ** 2 / sum(weight**2 for weight in weights))
    assert numbers["ungraded"] == int(case[1].isnan().sum()) > 0
    rows = finding.tables["by_solve_rate"]
    assert tuple(row["solve_rate"] for row in rows) == SOLVE_RATES
    for row in rows:
        here = [group for group in graded if naive_bucket(group["rate"]) == row["solve_rate"]]
        assert row["groups"] == len(here)
        assert row["success_mass"] == pytest.approx(mean([group["success"] / group["graded"] for group in here]), nan_ok=True)
        assert row["failure_mass"] == pytest.approx(mean([group["failure"] / group["graded"] for group in here]), nan_ok=True)
        assert row["token_positive"] == pytest.approx(sum(group["up"] for group in here))
        assert row["token_negative"] == pytest.approx(sum(group["down"] for group in here))
        assert row["token_share"] == pytest.approx(sum(group["up"] + group["down"] for group in here) / total)


@pytest.mark.parametrize("solved", range(9))
@pytest.mark.parametrize(
    ("name", "mass"),
    [
        ("dr-grpo", lambda p: p * (1 - p)),
        ("rloo", lambda p: p * (1 - p) * 8 / 7),
        ("grpo", lambda p: math.sqrt(p * (1 - p) * 7 / 8)),
    ],
)
def test_published_masses_of_group_baselines(name: str, mass, solved: int) -> None:
    """Eight responses, solve rate p: a mean baseline gives both sides p(1-p), leave-one-out 8/7 of it, division by the
    sample standard deviation sqrt(p(1-p) 8/7) the root of 7/8 p(1-p)."""
    score = torch.tensor([1.0] * solved + [0.0] * (8 - solved), dtype=torch.float64)
    group = torch.zeros(8, dtype=torch.long)
    advantage = ADVANTAGES[name](AdvantageInputs(score, group), {}).advantage
    mask = torch.ones(8, 2, dtype=torch.bool)
    finding = masses(advantage, score, group, advantage[:, None].expand(8, 2), mask)
    assert finding.numbers["success_mass"] == pytest.approx(mass(solved / 8), rel=1e-5)
    assert finding.numbers["failure_mass"] == pytest.approx(mass(solved / 8), rel=1e-5)
    assert finding.numbers["token_positive"] == pytest.approx(2 * 8 * mass(solved / 8), rel=1e-5)
    assert finding.numbers["dead_groups"] == (solved in (0, 8))
    place = (0, 1, 1, 2, 2, 3, 3, 4, 5)[solved]
    assert [row["groups"] for row in finding.tables["by_solve_rate"]] == [int(place == other) for other in range(6)]


def test_effective_groups_on_paper() -> None:
    assert effective_groups(torch.tensor([2.0, 2.0, 2.0])) == 3.0
    assert effective_groups(torch.tensor([0.0, 5.0])) == 1.0
    assert effective_groups(torch.tensor([3.0, 1.0])) == pytest.approx(1.6)
    assert math.isnan(effective_groups(torch.zeros(2)))


def test_a_batch_that_nobody_could_grade_says_so() -> None:
    score = torch.full((3,), NAN)
    finding = masses(torch.zeros(3), score, torch.tensor([0, 0, 1]), torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.bool))
    assert math.isnan(finding.numbers["success_mass"])
    assert math.isnan(finding.numbers["effective_groups"])
    assert finding.numbers["dead_groups"] == 1.0
    assert "3 responses could not be graded" in finding.note
    assert [row["groups"] for row in finding.tables["by_solve_rate"]] == [0] * 6


# --- centroids


def naive_contrast(vectors: list[list[float]], advantage: list[float], weight: list[float]) -> tuple[float, float, float]:
    width = len(vectors[0])
    sums, total = [[0.0] * width, [0.0] * width], [0.0, 0.0]
    for vector, a, c in zip(vectors, advantage, weight, strict=True):
        if a != 0:
            side = int(a < 0)
            total[side] += abs(a) * c
            for place in range(width):
                sums[side][place] += abs(a) * c * vector[place]
    positive, negative = ([value / total[side] for value in sums[side]] for side in (0, 1))
    size = [math.sqrt(sum(value * value for value in centroid)) for centroid in (positive, negative)]
    distance = math.sqrt(sum((x - y) ** 2 for x, y in zip(positive, negative, strict=True)))
    cosine = sum(x * y for x, y in zip(positive, negative, strict=True)) / (size[0] * size[1])
    return cosine, distance, distance / sum(size)


@pytest.mark.parametrize("seed", range(3))
def test_centroids_before_and_after_the_coefficients(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(9, 3, generator=draw, dtype=torch.float64)
    advantage = torch.tensor([1.0, -0.5, 0.0, 2.0, -1.0, -1.0, 0.5, 1.0, -2.0], dtype=torch.float64)
    coefficient = 0.5 + torch.rand(9, generator=draw, dtype=torch.float64)
    found = centroid_contrast(DenseVectors(hidden, chunk=4), advantage, coefficient)
    assert tuple(found.before) == pytest.approx(naive_contrast(hidden.tolist(), advantage.tolist(), [1.0] * 9))
    assert found.after is not None
    assert tuple(found.after) == pytest.approx(naive_contrast(hidden.tolist(), advantage.tolist(), coefficient.tolist()))
    head, tokens = torch.randn(4, 3, generator=draw, dtype=torch.float64), torch.randint(4, (9,), generator=draw)
    exact = (torch.nn.functional.one_hot(tokens, 4) - (hidden @ head.T).softmax(-1))[:, :, None] * hidden[:, None]
    by_head = centroid_contrast(HeadVectors(hidden, tokens, head, 1.0, chunk=4), advantage)
    assert tuple(by_head.before) == pytest.approx(naive_contrast(exact.flatten(1).tolist(), advantage.tolist(), [1.0] * 9))
    assert by_head.after is None


def test_centroids_on_paper() -> None:
    """Both sides share (1, 0); the positive side alone has (0, 1). A coefficient that drops the shared vector makes them orthogonal."""
    vectors = DenseVectors(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    advantage = torch.tensor([1.0, 1.0, -3.0])
    found = centroid_contrast(vectors, advantage, torch.tensor([0.0, 1.0, 1.0]))
    root = math.sqrt(0.5)
    assert tuple(found.before) == pytest.approx((root, root, root / (1 + root)))
    assert found.after is not None
    assert tuple(found.after) == pytest.approx((0.0, math.sqrt(2), math.sqrt(2) / 2))
    finding = masses(advantage, advantage, torch.tensor([0, 0, 0]), advantage[:, None], torch.ones(3, 1, dtype=torch.bool), found)
    assert finding.numbers["centroids/cosine/before"] == pytest.approx(root)
    assert finding.numbers["centroids/cosine/after"] == pytest.approx(0.0)
    assert finding.numbers["centroids/relative_distance/after"] == pytest.approx(math.sqrt(2) / 2)
    assert "With the method's coefficients: 0." in finding.note
    without = masses(advantage, advantage, torch.tensor([0, 0, 0]), advantage[:, None], torch.ones(3, 1, dtype=torch.bool))
    assert not any(name.startswith("centroids") for name in without.numbers)


def test_one_side_alone_has_no_contrast() -> None:
    vectors = DenseVectors(torch.ones(2, 3))
    assert all(map(math.isnan, centroid_contrast(vectors, torch.tensor([1.0, 2.0])).before))
    after = centroid_contrast(vectors, torch.tensor([1.0, -2.0]), torch.tensor([1.0, 0.0])).after
    assert after is not None
    assert all(map(math.isnan, after))
