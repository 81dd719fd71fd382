"""Every refusal of the stage records and of the functions that make them, with the field, both sizes and the place named."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tokencredit.advantage import group_advantage
from tokencredit.batching import make_plan, step_denominator
from tokencredit.objective import OBJECTIVES, TokenInputs, kl_estimate, with_kl
from tokencredit.shape import overlong_penalty
from tokencredit.types import Credited, PlannedStep, Rollouts, Scored, StepPlan, StepResult

NAN, INF = math.nan, math.inf


def with_entry(tensor: Tensor, place: tuple[int, ...], value: float) -> Tensor:
    changed = tensor.clone()
    changed[place] = value
    return changed


MASK = torch.tensor([[True, True, True], [True, True, False]])
LOGP = torch.tensor([[-0.5, -1.0, -2.0], [-0.25, -3.0, 0.0]])


def rollouts(**changes: Any) -> Rollouts:
    fields = {
        "prompts": ((1, 2), (1, 2)),
        "tokens": torch.tensor([[4, 5, 6], [7, 8, 0]]),
        "mask": MASK,
        "group": torch.tensor([3, 3]),
        "behavior_logp": LOGP,
        "finished": torch.tensor([False, True]),
    }
    return Rollouts(**(fields | changes))


def scored(**changes: Any) -> Scored:
    fields = {"rollouts": rollouts(), "score": torch.tensor([1.0, 0.0]), "reward": torch.tensor([0.75, 0.0])}
    return Scored(**(fields | changes))


def credited(**changes: Any) -> Credited:
    advantage = torch.tensor([1.0, -1.0])
    fields = {
        "scored": scored(),
        "old_logp": LOGP,
        "entropy": torch.ones(2, 3),
        "advantage": advantage,
        "coefficient": torch.ones(2, 3),
        "credit": advantage[:, None] * MASK,
        "reference_logp": LOGP,
    }
    return Credited(**(fields | changes))


def step(*micro_batches: tuple[int, ...], denominator: float = 4.0) -> PlannedStep:
    return PlannedStep(micro_batches=micro_batches, denominator=denominator, prompts=1, tokens=4)


def plan(*steps: PlannedStep, rows: int = 4) -> StepPlan:
    return StepPlan(kind="shuffled", seed=0, rows=rows, steps=steps)


def result(**changes: Any) -> StepResult:
    return StepResult(**(dict.fromkeys(("loss", "gradient_norm", "silenced_share", "ratio_mean"), (0.5, 0.5)) | changes))


def planned(**changes: Any) -> StepPlan:
    fields = {"lengths": [3, 2, 4], "group": [0, 0, 1], "optimizer_steps": 1, "max_tokens": 16, "seed": 0}
    return make_plan(**(fields | changes))


def loss_with_kl_but_no_reference() -> Tensor:
    objective = with_kl(OBJECTIVES["ppo-clip"](clip_low=0.2, clip_high=0.2, dual_clip=None), beta=0.1, estimator="k3")
    return objective.token_loss(TokenInputs(LOGP, LOGP, LOGP, MASK, torch.tensor([3, 3])), None)


UNGRADED = {"score": torch.tensor([NAN, 0.0]), "reward": torch.tensor([NAN, 0.0])}
WIDE = torch.ones(2, 4)
CREDIT = torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, 0.0]])

ROLLOUTS = {
    "flat tokens": ({"tokens": torch.tensor([4, 5, 6])}, "tokens is 3; it must be responses x tokens"),
    "too few prompts": ({"prompts": ((1, 2),)}, "prompts holds 1 prompts but tokens holds 2 responses"),
    "wide mask": ({"mask": WIDE.bool()}, "mask is 2x4 but tokens is 2x3"),
    "wide log-probs": ({"behavior_logp": -WIDE}, "behavior_logp is 2x4 but tokens is 2x3"),
    "long group": ({"group": torch.tensor([3, 3, 3])}, "group is 3 but there are 2 responses"),
    "short finished": ({"finished": torch.tensor([True])}, "finished is 1 but there are 2 responses"),
    "scalar group": ({"group": torch.tensor(3)}, "group is scalar but there are 2 responses"),
    "mask of numbers": ({"mask": MASK.int()}, "mask has dtype torch.int32; it must be bool"),
    "infinite log-prob": ({"behavior_logp": with_entry(LOGP, (1, 0), -INF)}, "behavior_logp is infinite at 1 of 6 places, first at [1, 0]"),
    "positive log-prob": (
        {"behavior_logp": with_entry(LOGP, (0, 2), 0.01)},
        "behavior_logp is above 0, which no log-prob can be, at 1 of 6",
    ),
}
SCORED = {
    "long score": ({"score": torch.ones(3)}, "score is 3 but there are 2 responses"),
    "short reward": ({"reward": torch.ones(1)}, "reward is 1 but there are 2 responses"),
    "infinite score": ({"score": torch.tensor([INF, 0.0])}, "score is infinite at 1 of 2 places, first at [0]"),
    "infinite reward": ({"reward": torch.tensor([1.0, -INF])}, "reward is infinite at 1 of 2 places, first at [1]"),
    "reward without score": ({"score": torch.tensor([1.0, NAN])}, "reward and score disagree on what could be graded at 1 of 2"),
    "score without reward": ({"reward": torch.tensor([NAN, 0.0])}, "reward and score disagree on what could be graded at 1 of 2"),
}
CREDITED = {
    "long advantage": ({"advantage": torch.ones(3)}, "advantage is 3 but there are 2 responses"),
    "advantage per token": ({"advantage": torch.ones(2, 3)}, "advantage is 2x3 but there are 2 responses"),
    "NaN advantage": ({"advantage": torch.tensor([1.0, NAN])}, "advantage is not finite at 1 of 2 places, first at [1]"),
    "infinite advantage": ({"advantage": torch.tensor([INF, 1.0])}, "advantage is not finite at 1 of 2 places, first at [0]"),
    **{f"wide {name}": ({name: WIDE}, f"{name} is 2x4 but mask is 2x3") for name in ("old_logp", "entropy", "coefficient", "credit")},
    "wide reference_logp": ({"reference_logp": WIDE}, "reference_logp is 2x4 but mask is 2x3"),
    **{
        f"NaN {name}": ({name: with_entry(LOGP, (1, 1), NAN)}, f"{name} is not finite at 1 of 6 places, first at [1, 1]")
        for name in ("old_logp", "entropy", "coefficient", "credit", "reference_logp")
    },
    "credit on padding": ({"credit": with_entry(CREDIT, (1, 2), 0.1)}, "credit lies outside the mask at 1 of 6 places, first at [1, 2]"),
    "NaN on padding": ({"credit": with_entry(CREDIT, (1, 2), NAN)}, "credit lies outside the mask at 1 of 6 places, first at [1, 2]"),
    "credit of its own": ({"credit": with_entry(CREDIT, (0, 1), -5.0)}, "credit is not coefficient x advantage at 1 of 6"),
    "credit on an ungraded response": (
        {"scored": scored(**UNGRADED)},
        "credit is set on a response that could not be graded at 3 of 6 places, first at [0, 0]",
    ),
}
RESULT = {name: ({name: (0.5,)}, f"'{name}': 1") for name in ("loss", "gradient_norm", "silenced_share", "ratio_mean")}
PLANNED = {
    "short group": ({"group": [0, 0]}, "lengths holds 3 rows but group holds 2"),
    "long cost": ({"cost": [3, 2, 4, 1]}, "lengths holds 3 rows but cost holds 4"),
    "unknown kind": ({"kind": "random"}, "kind is 'random'; it must be one of shuffled, query-preserved"),
    "no steps": ({"optimizer_steps": 0}, "optimizer_steps is 0; it must be at least 1"),
    "more steps than rows": ({"optimizer_steps": 4}, "optimizer_steps is 4 but there are only 3 responses to deal"),
    "more steps than prompts": (
        {"kind": "query-preserved", "optimizer_steps": 3},
        "optimizer_steps is 3 but there are only 2 prompts to keep whole",
    ),
    "negative length": ({"lengths": [3, -2, 4]}, "lengths holds -2; it cannot be negative"),
    "negative cost": ({"cost": [3, -5, 4]}, "cost holds -5; it cannot be negative"),
    "nan length": ({"lengths": [3.0, float("nan"), 4.0]}, "lengths holds nan; it must hold whole numbers"),
    "infinite length": ({"lengths": [3.0, float("inf"), 4.0]}, "lengths holds inf; it must hold whole numbers"),
    "broken length": ({"lengths": [3.0, 2.5, 4.0]}, "lengths holds 2.5; it must hold whole numbers"),
    "broken group": ({"group": torch.tensor([0.0, 0.5, 1.0])}, "group holds 0.5; it must hold whole numbers"),
    "broken cost": ({"cost": [3, 2.5, 4]}, "cost holds 2.5; it must hold whole numbers"),
    "row over budget": ({"cost": [9, 17, 5]}, "max_tokens is 16 but response 1 with its prompt takes 17 tokens"),
    "constant without length": ({"aggregation": "constant"}, "constant_length is None; aggregation 'constant' needs a whole number"),
    "unknown aggregation": ({"aggregation": "mean"}, "aggregation is 'mean'; it must be token-mean, sequence-mean or constant"),
}
RECORDS = {rollouts: ROLLOUTS, scored: SCORED, credited: CREDITED, result: RESULT, planned: PLANNED}


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [pytest.param(make, *case, id=f"{make.__name__}: {name}") for make, cases in RECORDS.items() for name, case in cases.items()],
)
def test_a_bad_field_is_refused_by_name(make: Callable[..., Any], changes: dict[str, Any], message: str) -> None:
    make()
    with pytest.raises(ValueError, match=re.escape(message)):
        make(**changes)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((step((0, 1), (1,)),), "plan places 3 rows but only 2 distinct ones; a row may appear once"),
        ((step((0, 1)), step((2, 0))), "plan places 4 rows but only 3 distinct ones; a row may appear once"),
        ((step((0, 4)),), "plan names row 4 but there are 4 rows"),
        ((step((0, -1)),), "plan names row -1 but there are 4 rows"),
        ((step((0,)), step((1,), denominator=0.0)), "optimizer step 1 has denominator 0.0; it must be above 0"),
        ((step((0,), denominator=-2.0),), "optimizer step 0 has denominator -2.0; it must be above 0"),
        ((step((0,), denominator=NAN),), "optimizer step 0 has denominator nan; it must be above 0"),
    ],
)
def test_a_bad_plan_is_refused(steps: tuple[PlannedStep, ...], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        plan(*steps)


TWO, GROUP = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: group_advantage(TWO, GROUP, kind="gae"), "kind is 'gae'; it must be one of grpo, dr-grpo, rloo"),
        (lambda: group_advantage(TWO, GROUP, preset="openrlhf"), "preset is 'openrlhf'; it must be one of tokencredit, trl, verl"),
        (lambda: group_advantage(TWO, torch.tensor([0])), "reward holds 2 responses but group holds 1; they must be the same"),
        (lambda: group_advantage(torch.tensor([1.0, INF]), GROUP), "reward is infinite at 1 of 2 responses; it must be finite or NaN"),
        (lambda: group_advantage(torch.tensor([-INF, INF]), GROUP, kind="rloo", preset="verl"), "reward is infinite at 2 of 2 responses"),
        (
            lambda: overlong_penalty(GROUP, max_length=8, buffer=0.0),
            "buffer is 0.0; it must be a share of max_length above 0 and at most 1",
        ),
        (lambda: overlong_penalty(GROUP, max_length=8, buffer=1.5), "buffer is 1.5; it must be a share of max_length"),
        (lambda: step_denominator([3], aggregation="constant", constant_length=0), "constant_length is 0; aggregation 'constant' needs"),
        (lambda: step_denominator([3], aggregation="sum"), "aggregation is 'sum'; it must be token-mean, sequence-mean or constant"),
        (lambda: kl_estimate(LOGP, LOGP, kind="k4"), "kind is 'k4'; it must be k1, k2 or k3"),
        (loss_with_kl_but_no_reference, "reference_logp is missing"),
    ],
)
def test_a_bad_argument_is_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_token_the_sampler_could_not_score_leaves_the_loss_alone() -> None:
    assert rollouts(behavior_logp=with_entry(LOGP, (0, 1), NAN)).loss_mask.tolist() == [[True, False, True], [True, True, False]]


def test_outside_the_mask_a_log_prob_may_be_anything() -> None:
    for anything in (NAN, INF, -INF, 3.0):
        assert rollouts(behavior_logp=with_entry(LOGP, (1, 2), anything)).loss_mask.tolist() == MASK.tolist()
        credited(old_logp=with_entry(LOGP, (1, 2), anything))


def test_an_ungraded_response_is_accepted_without_credit() -> None:
    accepted = credited(scored=scored(**UNGRADED), advantage=torch.tensor([0.0, -1.0]), credit=CREDIT * torch.tensor([[0.0], [1.0]]))
    assert accepted.scored.graded.tolist() == [False, True]
    assert accepted.rollouts is accepted.scored.rollouts


def test_selecting_rows_keeps_each_row_together() -> None:
    source = rollouts(prompts=((1,), (2, 3)), group=torch.tensor([3, 8]))
    swapped = source.select(torch.tensor([1, 0]))
    assert swapped.prompts == ((2, 3), (1,))
    for name in ("tokens", "mask", "group", "behavior_logp", "finished"):
        assert getattr(swapped, name).tolist() == getattr(source, name).flip(0).tolist()


def test_the_digest_sees_every_part_of_a_plan() -> None:
    plans = [
        plan(step((0, 1))),
        plan(step((1, 0))),
        plan(step((0,), (1,))),
        plan(step((0, 1), denominator=5.0)),
        plan(step((0, 1)), rows=9),
    ]
    assert len({each.digest for each in plans}) == len(plans)
    assert plan(step((0, 1))).digest == plans[0].digest
