"""What a response earns beside the verifier's score: keeping to the format, and being short. Each part is logged by itself."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.train import Reward
from tokencredit.policy.policy import Policy
from tokencredit.rollout.turns import on_cpu, turn_tokens
from tokencredit.types import Rollouts

RIGHT = 1.0
"""A score of at least this is right."""


def reward_parts(policy: Policy, rollouts: Rollouts, score: Float[Tensor, " seq"], *, limit: int) -> dict[str, Tensor]:
    """correct: right or not, NaN where nobody could tell; format: kept to or not; length: share of the limit that was used."""
    kept = torch.ones_like(rollouts.finished)
    if policy.prompting.tags:
        read = on_cpu(rollouts)
        turns = (turn_tokens(read, row) for row in range(len(read.prompts)))
        kept = torch.tensor([all(policy.prompting.well_formed(policy.decode(turn)) for turn in row) for row in turns], device=score.device)
    return {
        "correct": (score >= RIGHT).to(score.dtype).where(~score.isnan(), torch.nan),
        "format": (kept & rollouts.finished).to(score.dtype),
        "length": (rollouts.mask.sum(-1) / limit).to(score.dtype),
    }


def part_means(parts: Mapping[str, Tensor]) -> dict[str, float]:
    """To be logged; a part that nobody could tell of any response is left out."""
    return {f"reward/{name}": float(value.nanmean()) for name, value in parts.items() if not bool(value.isnan().all())}


def bonus(parts: Mapping[str, Tensor], reward: Reward) -> Tensor | None:
    """Added to the score of each response; None where nothing beside the score counts."""
    if not reward.format and not reward.length:
        return None
    return reward.format * parts["format"] - reward.length * parts["length"] * (parts["correct"] == 1)
