"""Numbers about credit and plan that every engine tells under the same names."""

from tokencredit.batching.microbatch import splitting_share
from tokencredit.pipeline.credit import StageState
from tokencredit.types import Credited, StepPlan


def state_metrics(state: StageState) -> dict[str, float]:
    """Every number a method remembers, under its stage's name: a controller is seen while it works."""
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
