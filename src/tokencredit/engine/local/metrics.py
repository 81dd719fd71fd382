"""What a training step is told by: one flat row of numbers, and one row per token."""

from collections.abc import Sequence
from typing import Any

import torch

from tokencredit.engine.local.pipeline import StageState
from tokencredit.engine.local.policy import Policy
from tokencredit.masked import group_statistics, masked_mean
from tokencredit.objective.correction import CorrectionLevel, mismatch
from tokencredit.tasks import Problem, Task
from tokencredit.types import Credited, StepPlan, StepResult


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def sampler_mismatch(credited: Credited) -> float:
    """How far scoring and sampling disagree: mean |old log-prob - behaviour log-prob|."""
    rollouts = credited.rollouts
    return float(masked_mean((credited.old_logp - rollouts.behavior_logp.to(credited.old_logp.dtype)).abs(), rollouts.loss_mask))


def state_metrics(state: StageState) -> dict[str, float]:
    """Every number a method remembers, under its stage's name: a controller is seen while it works."""
    return {
        f"{stage}/{name}": float(value)
        for stage, remembered in state._asdict().items()
        for name, value in remembered.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def step_metrics(
    credited: Credited, plan: StepPlan, result: StepResult, *, correction_level: CorrectionLevel = "token"
) -> dict[str, float]:
    """`correction_level` is the level at which the correction's weights were made; their ratios are told at it."""
    scored, rollouts = credited.scored, credited.rollouts
    graded = scored.graded
    spread = group_statistics(scored.reward, rollouts.group).std
    row = {
        "score": float(scored.score.nan_to_num().sum() / graded.sum().clamp(min=1)),
        "reward": float(scored.reward.nan_to_num().sum() / graded.sum().clamp(min=1)),
        "dead_groups": float((spread == 0).double().mean()),
        "entropy": float(masked_mean(credited.entropy, rollouts.mask)),
        "length": float(rollouts.mask.sum(-1).double().mean()),
        "cut_off": float((~rollouts.finished).double().mean()),
        "ungraded": int((~graded).sum()),
        "unscored_tokens": int((rollouts.mask & ~rollouts.loss_mask).sum()),
        "sampler_mismatch": sampler_mismatch(credited),
        "loss": _mean(result.loss),
        "gradient_norm": _mean(result.gradient_norm),
        "silenced_share": _mean(result.silenced_share),
        "ratio_mean": _mean(result.ratio_mean),
        "optimizer_steps": len(plan.steps),
        "prompts_per_optimizer_step": _mean([step.prompts for step in plan.steps]),
        "tokens": sum(step.tokens for step in plan.steps),
    }
    if credited.coefficient is not None:
        inside = credited.coefficient[rollouts.loss_mask].double()
        row |= {"coefficient_mean": float(inside.mean()), "coefficient_std": float(inside.std(correction=0))}
    if credited.correction is not None:
        old_logp, behavior_logp = credited.old_logp, rollouts.behavior_logp.to(credited.old_logp.dtype)
        found = mismatch(old_logp, behavior_logp, credited.correction, rollouts.loss_mask, level=correction_level)
        row |= {f"correction/{name}": value for name, value in found._asdict().items()}
    if credited.reference_logp is not None:
        row["kl"] = float(masked_mean(credited.old_logp - credited.reference_logp, rollouts.mask))
    return row


def token_columns(
    step: int, credited: Credited, plan: StepPlan, policy: Policy, task: Task, problems: Sequence[Problem]
) -> dict[str, list[Any]]:
    """The token file of one training step, column by column, in the order of record.TOKEN_COLUMNS."""
    rollouts, scored = credited.rollouts, credited.scored
    where = rollouts.mask.nonzero()
    row, position = where[:, 0], where[:, 1]
    step_of_row = torch.full((plan.rows,), -1)
    for number, planned in enumerate(plan.steps):
        step_of_row[list(planned.rows)] = number
    groups = rollouts.group.tolist()
    texts: list[str] = []
    classes: list[str] = []
    for index in range(plan.rows):
        ids = rollouts.tokens[index][rollouts.mask[index]].tolist()
        pieces = policy.token_texts(ids)
        texts += pieces
        classes += token_classes(task, problems[groups[index]], pieces, ended=bool(ids) and ids[-1] in policy.end_tokens)
    mask = rollouts.mask

    def per_token(value: torch.Tensor) -> list[float]:
        return value[mask].double().tolist()

    return {
        "step": [step] * len(row),
        "row": row.tolist(),
        "group": rollouts.group[row].tolist(),
        "position": position.tolist(),
        "prompt": [problems[groups[index]].prompt for index in row.tolist()],
        "text": texts,
        "token_class": classes,
        "token_id": rollouts.tokens[mask].tolist(),
        "logp": per_token(credited.old_logp),
        "behavior_logp": per_token(rollouts.behavior_logp),
        "entropy": per_token(credited.entropy),
        "reward": scored.reward[row].double().tolist(),
        "advantage": credited.advantage[row].double().tolist(),
        "coefficient": [None] * len(row) if credited.coefficient is None else per_token(credited.coefficient),
        "credit": per_token(credited.credit),
        "optimizer_step": step_of_row[row.cpu()].tolist(),
    }


def token_classes(task: Task, problem: Problem, pieces: Sequence[str], *, ended: bool) -> list[str]:
    """A token takes the class of its first character; the end token is `end`."""
    body = pieces[:-1] if ended else pieces
    labels = task.token_class(problem, "".join(body))
    classes: list[str] = []
    at = 0
    for piece in body:
        classes.append(labels[at] if at < len(labels) else "other")
        at += len(piece)
    return [*classes, "end"] if ended else classes
