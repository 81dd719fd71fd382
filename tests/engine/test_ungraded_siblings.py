"""What the engine makes of a missing score, and how exactly it keeps those it has."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.runs import small_config, trainer_of
from tiny import gradient_of, made_up_credit, made_up_rollouts, tiny_policy
from tokencredit.forward.modes import ForwardOptions
from tokencredit.objective import OBJECTIVES
from tokencredit.optim.update import accumulate_gradient
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.pipeline.credit import MethodState
from tokencredit.policy.policy import Policy
from tokencredit.trainer.loop import step_once
from tokencredit.types import Credited, PlannedStep

SILENT = 4
"""A response of the second group, with siblings 3 and 5."""


def with_a_silent_response(*, graded: bool) -> Credited:
    """It has no credit, and became less probable than any sibling: counted in, it would be the minimum of the group's weights."""
    credited = made_up_credit(made_up_rollouts())
    advantage, coefficient, old_logp = credited.advantage.clone(), torch.ones_like(credited.credit), credited.old_logp.clone()
    advantage[SILENT], old_logp[SILENT] = 0.0, 0.0
    coefficient = coefficient * credited.rollouts.loss_mask
    score = credited.scored.score.clone()
    score[SILENT] = 0.0 if graded else math.nan
    return replace(
        credited,
        scored=replace(credited.scored, score=score, reward=score),
        old_logp=old_logp,
        advantage=advantage,
        coefficient=coefficient,
        credit=coefficient * advantage[:, None],
    )


def dfpo_gradient(policy: Policy, credited: Credited, micro_batches: tuple[tuple[int, ...], ...], **choice: object) -> torch.Tensor:
    built = AggregatedObjective(OBJECTIVES["dfpo"](**choice), "token-mean", 11)
    step = PlannedStep(micro_batches=micro_batches, denominator=31.0, prompts=2, tokens=31)
    policy.model.zero_grad()
    accumulate_gradient(policy, credited, step, built, ForwardOptions(temperature=1.0))
    return gradient_of(policy)


@pytest.mark.parametrize("choice", [{}, {"transform": "orthogonal"}, {"transform": "none", "fold_length": True}], ids=str)
def test_an_ungraded_response_does_not_change_the_dfpo_gradient_of_its_siblings(choice: dict) -> None:
    """Present, in a micro-batch of its own, or left out of the step: the same gradient. Graded, it would have had a say."""
    policy, ungraded = tiny_policy(), with_a_silent_response(graded=False)
    alone = dfpo_gradient(policy, ungraded, ((0, 1, 3, 5),), **choice)
    assert alone.norm() > 1e-3
    for cut in (((0, 1, 3, SILENT, 5),), ((SILENT,), (0, 1, 3, 5)), ((0, 3), (1, SILENT, 5))):
        assert (dfpo_gradient(policy, ungraded, cut, **choice) - alone).norm() < 1e-12 * alone.norm()
    counted_in = dfpo_gradient(policy, with_a_silent_response(graded=True), ((0, 1, 3, SILENT, 5),), **choice)
    had_a_say = (counted_in - alone).norm() > 1e-3 * alone.norm()
    # An advantage of 0 adds nothing to a projection, graded or not.
    assert had_a_say == (choice.get("transform") != "orthogonal")


# --- precision of scores


@pytest.mark.parametrize("recipe", ["dr-grpo", "grpo", "rloo"])
@pytest.mark.parametrize(("dtype", "kept"), [("float64", torch.float64), ("float32", torch.float32)])
def test_scores_are_as_precise_as_the_run(tmp_path: Path, recipe: str, dtype: str, kept: torch.dtype) -> None:
    """Groups of seven have means that no binary fraction holds; in float64 their advantages still sum to 0 to 1e-12."""
    trainer = trainer_of(small_config(recipe=recipe, dtype=dtype, sampling={"prompts": 6, "group_size": 7}))
    trained = step_once(trainer, 0, MethodState())
    assert trained.trained
    credited = trained.credited
    assert credited.scored.score.dtype == credited.scored.reward.dtype == credited.advantage.dtype == credited.credit.dtype == kept
    group = credited.rollouts.group
    sums = torch.zeros(6, dtype=torch.float64).index_add(0, group, credited.advantage.double())
    assert credited.advantage.any()
    assert (float(sums.abs().max()) < 1e-12) == (dtype == "float64")
    assert float(sums.abs().max()) < 1e-5
