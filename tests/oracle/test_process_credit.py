"""Process credit against a twin that walks along every response, and by hand."""

import math
from random import Random

import pytest
import torch

from tokencredit.advantage.group import dr_grpo_advantage
from tokencredit.credit import CREDITS, CreditInputs

NAN = math.nan


def made_up_inputs(seed: int, dtype: torch.dtype = torch.float64) -> CreditInputs:
    """Scattered groups, one all right, one alone; ungraded rows, a row without tokens, holes; values also at holes and at first tokens."""
    draw = Random(seed)
    rows, width = 12, 9
    group = [draw.choice([-4, 6, 6]) for _ in range(rows)]
    score = [draw.choice([0.0, 1.0, 0.25, NAN]) for _ in range(rows)]
    group[:5], score[:5] = [50, 50, 51, 6, 6], [1.0, 1.0, 0.5, 1.0, 0.0]
    lengths = [draw.randint(1, width) for _ in range(rows)]
    lengths[3] = 0
    mask = [[column < length and draw.random() > 0.2 for column in range(width)] for length in lengths]
    value = [[draw.randint(0, 8) / 8 if draw.random() < 0.4 else NAN for _ in range(width)] for _ in range(rows)]
    return CreditInputs(
        advantage=torch.full((rows,), NAN, dtype=dtype),
        mask=torch.tensor(mask),
        group=torch.tensor(group),
        tokens=torch.zeros(rows, width, dtype=torch.long),
        logp=torch.full((rows, width), NAN, dtype=dtype),
        entropy=torch.full((rows, width), NAN, dtype=dtype),
        seed=seed,
        score=torch.tensor(score, dtype=dtype),
        prefix_value=torch.tensor(value, dtype=torch.float64),
    )


def naive_segments(inputs: CreditInputs, row: int) -> list[tuple[list[int], float]]:
    """Tokens of each segment of a graded response, and what the segment adds to the chance of success."""
    assert inputs.score is not None
    assert inputs.prefix_value is not None
    scores, group = inputs.score.tolist(), inputs.group.tolist()
    graded = [s for s, name in zip(scores, group, strict=True) if name == group[row] and not math.isnan(s)]
    segments: list[list[int]] = []
    values: list[float] = []
    for t, held in enumerate(inputs.mask[row].tolist()):
        if not held:
            continue
        known = float(inputs.prefix_value[row, t])
        if not segments:
            segments, values = [[t]], [sum(graded) / len(graded)]
        elif math.isnan(known):
            segments[-1].append(t)
        else:
            segments.append([t])
            values.append(known)
    values.append(scores[row])
    return [(segment, values[k + 1] - values[k]) for k, segment in enumerate(segments)]


def naive_process(inputs: CreditInputs, *, dead_groups: str) -> list[list[float]]:
    assert inputs.score is not None
    scores, group = inputs.score.tolist(), inputs.group.tolist()
    credit = [[0.0] * inputs.mask.shape[1] for _ in scores]
    for row, score in enumerate(scores):
        if math.isnan(score):
            continue
        distinct = {s for s, name in zip(scores, group, strict=True) if name == group[row] and not math.isnan(s)}
        if dead_groups == "skip" and len(distinct) == 1:
            continue
        for segment, gain in naive_segments(inputs, row):
            for t in segment:
                credit[row][t] = gain
    return credit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dead_groups", ["skip", "branch"])
def test_equals_the_naive_twin(dead_groups: str, dtype: torch.dtype) -> None:
    for seed in range(20):
        inputs = made_up_inputs(seed, dtype)
        outcome = CREDITS["process"](inputs, {"kept": 1}, dead_groups=dead_groups)
        expected = torch.tensor(naive_process(inputs, dead_groups=dead_groups), dtype=torch.float64)
        torch.testing.assert_close(outcome.credit, expected.to(dtype), rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=1e-7)
        assert outcome.coefficient is None
        assert outcome.state == {"kept": 1}


def test_dead_groups_are_skipped_unless_told_otherwise() -> None:
    inputs = made_up_inputs(2)
    assert torch.equal(CREDITS["process"](inputs, {}).credit, CREDITS["process"](inputs, {}, dead_groups="skip").credit)


def test_segments_sum_to_the_dr_grpo_advantage() -> None:
    for seed in range(20):
        inputs = made_up_inputs(seed)
        credit = CREDITS["process"](inputs, {}, dead_groups="branch").credit
        advantage = dr_grpo_advantage(inputs.score, inputs.group)
        for row, score in enumerate(inputs.score.tolist()):
            if inputs.mask[row].any() and not math.isnan(score):
                once = sum(float(credit[row, segment[0]]) for segment, _ in naive_segments(inputs, row))
                assert once == pytest.approx(float(advantage[row]), abs=1e-12)


def test_without_values_every_token_receives_the_dr_grpo_advantage() -> None:
    inputs = made_up_inputs(5)
    inputs = inputs._replace(
        prefix_value=torch.full_like(inputs.prefix_value, NAN), advantage=dr_grpo_advantage(inputs.score, inputs.group)
    )
    torch.testing.assert_close(CREDITS["process"](inputs, {}).credit, CREDITS["uniform"](inputs, {}).credit, rtol=0, atol=1e-12)


def test_one_success_in_two_by_hand() -> None:
    """V(prompt) = 1/2; the second step of the failure throws the chance of 3/4 away, the last of the success makes the rest."""
    inputs = CreditInputs(
        advantage=torch.tensor([0.5, -0.5], dtype=torch.float64),
        mask=torch.tensor([[True, True, True, True], [True, True, True, False]]),
        group=torch.tensor([0, 0]),
        tokens=torch.zeros(2, 4, dtype=torch.long),
        logp=torch.zeros(2, 4, dtype=torch.float64),
        entropy=torch.zeros(2, 4, dtype=torch.float64),
        seed=0,
        score=torch.tensor([1.0, 0.0], dtype=torch.float64),
        prefix_value=torch.tensor([[NAN, NAN, 0.25, 0.75], [NAN, 0.75, NAN, 0.5]], dtype=torch.float64),
    )
    assert CREDITS["process"](inputs, {}).credit.tolist() == [[-0.25, -0.25, 0.5, 0.25], [0.25, -0.75, -0.75, 0.0]]


@pytest.mark.parametrize("missing", ["score", "prefix_value"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(ValueError, match=f"{missing} is missing"):
        CREDITS["process"](made_up_inputs(0)._replace(**{missing: None}), {})
