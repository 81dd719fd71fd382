"""Numbers that must be finite before an optimizer step, checked in the order in which they are computed; the first bad stage is named."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.errors import BadNumbersError
from tokencredit.types import Scored

REWARDS, LOG_PROBS, CREDIT, LOSS, GRADIENT_NORM = "rewards", "log-probs", "credit", "loss", "gradient norm"
STAGES = (REWARDS, LOG_PROBS, CREDIT, LOSS, GRADIENT_NORM)
NAMED_ROWS = 8


def describe_rows(rows: list[int]) -> str:
    shown = ", ".join(str(row) for row in rows[:NAMED_ROWS])
    return f"response{'' if len(rows) == 1 else 's'} {shown}" + (f" and {len(rows) - NAMED_ROWS} more" if len(rows) > NAMED_ROWS else "")


def require_finite(stage: str, what: str, value: Float[Tensor, "seq ..."], where: Bool[Tensor, "seq ..."], ending: str = "") -> None:
    """Refuse a value that is infinite or NaN where `where` is True, and name the responses."""
    bad = ~value.isfinite() & where
    if bool(bad.any()):
        rows = torch.nonzero(bad.flatten(1).any(-1) if bad.dim() > 1 else bad)[:, 0].tolist()
        raise BadNumbersError(stage, f"{what} are not finite in {describe_rows(rows)}{ending}", rows)


def check_scores(score: Float[Tensor, " seq"]) -> None:
    """NaN means that a response could not be graded; infinity has no meaning."""
    require_finite(REWARDS, "rewards", score, ~score.isnan())


def check_log_probs(logp: Float[Tensor, "seq tok"], mask: Bool[Tensor, "seq tok"], whose: str = "sampled tokens") -> None:
    require_finite(LOG_PROBS, f"log-probs of the {whose}", logp, mask, "; the policy has broken down" if whose == "sampled tokens" else "")


def check_rewards(reward: Float[Tensor, " seq"], score: Float[Tensor, " seq"]) -> None:
    require_finite(REWARDS, "shaped rewards", reward, ~score.isnan())


def check_credit(scored: Scored, advantage: Tensor, coefficient: Tensor | None, credit: Tensor) -> None:
    mask = scored.rollouts.loss_mask
    require_finite(CREDIT, "advantages", advantage, torch.ones_like(advantage, dtype=torch.bool))
    if coefficient is not None:
        require_finite(CREDIT, "coefficients of tokens", coefficient, mask)
    require_finite(CREDIT, "credits of tokens", credit, mask)
