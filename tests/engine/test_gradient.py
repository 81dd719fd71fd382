"""The update's gradient: equal to the formula token by token, whatever the micro-batches, with step statistics too."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tiny import CONSTANT, gradient_of, made_up_credit, made_up_rollouts, plan_for, tiny_policy
from tokencredit.forward.modes import ForwardOptions
from tokencredit.objective import OBJECTIVES, Objective, TokenInputs, with_kl
from tokencredit.optim.update import accumulate_gradient
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.policy.policy import Policy
from tokencredit.types import Aggregation, Credited, PlannedStep

AGGREGATIONS: tuple[Aggregation, ...] = ("token-mean", "sequence-mean", "constant")


class GroupMeanRatio:
    """A made-up step statistic: each group's mean token ratio, which no micro-batch can know by itself."""

    def __init__(self) -> None:
        self.total: dict[int, float] = {}
        self.count: dict[int, int] = {}

    def add(self, inputs: TokenInputs) -> None:
        ratio = (inputs.logp - inputs.old_logp).exp()
        for row, group in enumerate(inputs.group.tolist()):
            inside = inputs.mask[row]
            self.total[group] = self.total.get(group, 0.0) + float(ratio[row][inside].sum())
            self.count[group] = self.count.get(group, 0) + int(inside.sum())

    def finish(self) -> dict[int, float]:
        return {group: total / max(1, self.count[group]) for group, total in self.total.items()}


def weighted_by_group_mean(inputs: TokenInputs, statistic: dict[int, float]) -> torch.Tensor:
    weight = torch.tensor([statistic[group] for group in inputs.group.tolist()], dtype=inputs.logp.dtype)
    return -weight[:, None] * inputs.credit * inputs.logp


CLIP = OBJECTIVES["ppo-clip"](clip_low=0.2, clip_high=0.28, dual_clip=3.0)
OBJECTIVES_UNDER_TEST: dict[str, Objective] = {
    "clip": CLIP,
    "clip+kl": with_kl(CLIP, beta=0.3, estimator="k3"),
    "step statistic": Objective(token_loss=weighted_by_group_mean, statistic=GroupMeanRatio),
}


def engine_gradient(policy: Policy, credited: Credited, step: PlannedStep, objective: Objective, aggregation: Aggregation) -> torch.Tensor:
    policy.model.zero_grad()
    accumulate_gradient(policy, credited, step, AggregatedObjective(objective, aggregation, CONSTANT), ForwardOptions(temperature=0.7))
    return gradient_of(policy)


def relative_gap(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize("name", OBJECTIVES_UNDER_TEST)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_micro_batching_never_changes_the_gradient(name: str, aggregation: Aggregation, dtype: torch.dtype, tolerance: float) -> None:
    policy, credited = tiny_policy(dtype), made_up_credit(made_up_rollouts(), dtype=dtype)
    gradients: list[torch.Tensor] = []
    cuts: set[int] = set()
    for max_tokens in (13, 26, 40, 1000):
        step = plan_for(credited, max_tokens, aggregation).steps[0]
        cuts.add(len(step.micro_batches))
        gradients.append(engine_gradient(policy, credited, step, OBJECTIVES_UNDER_TEST[name], aggregation))
    assert len(cuts) >= 3
    assert gradients[0].norm() > 1e-3
    for one, two in pairwise(gradients):
        assert relative_gap(one, two) < tolerance


@pytest.mark.mutants
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_denominator_per_micro_batch_would_be_noticed(aggregation: Aggregation) -> None:
    """The mutant this file exists for: each micro-batch divided by its own count, then averaged."""
    policy, credited = tiny_policy(), made_up_credit(made_up_rollouts())

    def mutant(max_tokens: int) -> torch.Tensor:
        step = plan_for(credited, max_tokens, aggregation).steps[0]
        lengths = credited.rollouts.loss_mask.sum(-1)
        policy.model.zero_grad()
        for rows in step.micro_batches:
            own = {"token-mean": int(lengths[list(rows)].sum()), "sequence-mean": len(rows), "constant": len(rows) * CONSTANT}[aggregation]
            part = replace(step, micro_batches=(rows,), denominator=max(1.0, own) * len(step.micro_batches))
            accumulate_gradient(policy, credited, part, AggregatedObjective(CLIP, aggregation, CONSTANT), ForwardOptions(temperature=0.7))
        return gradient_of(policy)

    assert relative_gap(mutant(56), mutant(1000)) > 1e-3


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_gradient_equals_the_formula_one_response_at_a_time(aggregation: Aggregation) -> None:
    """An independent twin: every response alone, unpadded, log-softmax by hand, PPO's loss in plain loops."""
    policy, credited = tiny_policy(), made_up_credit(made_up_rollouts())
    rollouts = credited.rollouts
    step = plan_for(credited, 40, aggregation).steps[0]
    policy.model.zero_grad()
    tokens_in_step = sum(int(rollouts.loss_mask[row].sum()) for row in step.rows)
    total = torch.zeros((), dtype=torch.float64)
    for row in step.rows:
        prompt, response = list(rollouts.prompts[row]), rollouts.tokens[row].tolist()
        logits = policy.model(input_ids=torch.tensor([prompt + response])).logits[0] / 0.7
        own_length = int(rollouts.loss_mask[row].sum())
        for position, token in enumerate(response):
            if not rollouts.loss_mask[row, position]:
                continue
            predicting = logits[len(prompt) + position - 1]
            logp = predicting[token] - torch.log(torch.exp(predicting).sum())
            ratio = torch.exp(logp - credited.old_logp[row, position])
            credit = float(credited.credit[row, position])
            clipped = torch.clamp(ratio, 0.8, 1.28)
            value = torch.minimum(ratio * credit, clipped * credit)
            value = torch.maximum(value, torch.tensor(3.0 * credit)) if credit < 0 else value
            divisor = {
                "token-mean": tokens_in_step,
                "sequence-mean": own_length * len(step.rows),
                "constant": CONSTANT * len(step.rows),
            }[aggregation]
            total = total - value / divisor
    total.backward()
    expected = gradient_of(policy)
    assert relative_gap(engine_gradient(policy, credited, step, CLIP, aggregation), expected) < 1e-10


def test_leaving_out_creditless_responses_changes_nothing_but_time() -> None:
    policy, credited = tiny_policy(), made_up_credit(made_up_rollouts())
    step = plan_for(credited, 40, "token-mean").steps[0]
    dead = [row for row in step.rows if not (credited.credit[row] != 0).any()]
    assert dead
    everything = replace(CLIP, silent_without_credit=False)
    left_out = engine_gradient(policy, credited, step, CLIP, "token-mean")
    assert relative_gap(left_out, engine_gradient(policy, credited, step, everything, "token-mean")) < 1e-12


def test_a_kl_term_reaches_responses_without_credit() -> None:
    policy, credited = tiny_policy(), made_up_credit(made_up_rollouts())
    step = plan_for(credited, 1000, "token-mean").steps[0]
    dead = tuple(row for row in step.rows if not (credited.credit[row] != 0).any())
    alone = replace(step, micro_batches=(dead,))
    gradient = engine_gradient(policy, credited, alone, OBJECTIVES_UNDER_TEST["clip+kl"], "token-mean")
    assert gradient.norm() > 1e-4


def test_silenced_share_counts_credited_tokens_without_gradient() -> None:
    policy, credited = tiny_policy(), made_up_credit(made_up_rollouts())
    step = plan_for(credited, 1000, "token-mean").steps[0]
    built = AggregatedObjective(CLIP, "token-mean", CONSTANT)
    measured = accumulate_gradient(policy, credited, step, built, ForwardOptions(temperature=0.7)).silenced_share
    silenced, live = 0, 0
    for row in step.rows:
        prompt, response = list(credited.rollouts.prompts[row]), credited.rollouts.tokens[row].tolist()
        with torch.no_grad():
            logp = (policy.model(input_ids=torch.tensor([prompt + response])).logits[0] / 0.7).log_softmax(-1)
        for position, token in enumerate(response):
            credit = float(credited.credit[row, position])
            if credit == 0:
                continue
            ratio = float((logp[len(prompt) + position - 1, token] - credited.old_logp[row, position]).exp())
            live += 1
            silenced += (credit > 0 and ratio > 1.28) or (credit < 0 and (ratio < 0.8 or ratio > 3.0))
    assert 0 < silenced < live
    assert measured == pytest.approx(silenced / live)
