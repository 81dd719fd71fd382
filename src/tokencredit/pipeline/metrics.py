"""Metrics of credit and plan, under the same names in every engine.

The metrics of a training step are one flat row, under TRL's names where TRL has one.
"""

from collections.abc import Sequence

from tokencredit.batching.microbatch import splitting_share
from tokencredit.masked import group_statistics, masked_mean
from tokencredit.objective.correction import CorrectionLevel, mismatch
from tokencredit.pipeline.credit import MethodState
from tokencredit.types import Credited, StepPlan, StepResult


def state_metrics(state: MethodState) -> dict[str, float]:
    """Every number that a method carries between steps, under its stage's name, so that a controller's course is logged."""
    return {
        f"{stage}/{name}": float(value)
        for stage, remembered in state._asdict().items()
        for name, value in remembered.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def credit_metrics(credited: Credited, plan: StepPlan) -> dict[str, float]:
    rollouts = credited.rollouts
    row: dict[str, float] = {
        "ungraded": int((~credited.scored.graded).sum()),
        "unscored_tokens": int((rollouts.mask & ~rollouts.loss_mask).sum()),
        "optimizer_steps": len(plan.steps),
        "prompts_per_optimizer_step": sum(step.prompts for step in plan.steps) / max(1, len(plan.steps)),
        "steps_splitting_groups": splitting_share([step.rows for step in plan.steps], rollouts.group),
        "tokens": sum(step.tokens for step in plan.steps),
    }
    if credited.coefficient is not None:
        inside = credited.coefficient[rollouts.loss_mask].double()
        row |= {"coefficient_mean": float(inside.mean()), "coefficient_std": float(inside.std(correction=0))}
    return row


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def sampler_mismatch(credited: Credited) -> float:
    """Mean disagreement of scoring and sampling: |old log-prob - behaviour log-prob|."""
    rollouts = credited.rollouts
    return float(masked_mean((credited.old_logp - rollouts.behavior_logp.to(credited.old_logp.dtype)).abs(), rollouts.loss_mask))


def mean_entropy(credited: Credited) -> float:
    return float(masked_mean(credited.entropy, credited.rollouts.mask))


def step_metrics(
    credited: Credited, plan: StepPlan, result: StepResult, *, correction_level: CorrectionLevel = "token"
) -> dict[str, float]:
    """`correction_level` is the level at which the correction's weights were made; their ratios are reported at it."""
    scored, rollouts = credited.scored, credited.rollouts
    graded = scored.graded
    spread = group_statistics(scored.reward, rollouts.group).std
    length = rollouts.mask.sum(-1).double()
    row = {
        "score": float(scored.score.nan_to_num().sum() / graded.sum().clamp(min=1)),
        "reward": float(scored.reward.nan_to_num().sum() / graded.sum().clamp(min=1)),
        "reward_std": float(scored.reward[graded].double().std()) if int(graded.sum()) > 1 else 0.0,
        "frac_reward_zero_std": float((spread == 0).double().mean()),
        "entropy": mean_entropy(credited),
        "completions/mean_length": float(length.mean()),
        "completions/min_length": float(length.min()),
        "completions/max_length": float(length.max()),
        "completions/clipped_ratio": float((~rollouts.finished).double().mean()),
        "sampling/sampling_logp_difference/mean": sampler_mismatch(credited),
        "loss": _mean(result.loss),
        "grad_norm": _mean(result.gradient_norm),
        "silenced_share": _mean(result.silenced_share),
        "ratio_mean": _mean(result.ratio_mean),
        **credit_metrics(credited, plan),
    }
    if credited.correction is not None:
        old_logp, behavior_logp = credited.old_logp, rollouts.behavior_logp.to(credited.old_logp.dtype)
        found = mismatch(old_logp, behavior_logp, credited.correction, rollouts.loss_mask, level=correction_level)
        row |= {f"correction/{name}": value for name, value in found._asdict().items()}
    if credited.reference_logp is not None:
        row["kl"] = float(masked_mean(credited.old_logp - credited.reference_logp, rollouts.mask))
    return row
