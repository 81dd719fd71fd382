"""One number per response. `ADVANTAGES` is the table: name -> stage function."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.dr_grpo import dr_grpo_advantage
from tokencredit.advantage.grpo import grpo_advantage
from tokencredit.advantage.preset import PresetName
from tokencredit.advantage.rloo import rloo_advantage
from tokencredit.advantage.stage import Advantage, AdvantageInputs, AdvantageOutcome, from_rewards

ADVANTAGES: dict[str, Advantage] = {
    "grpo": from_rewards(grpo_advantage),
    "dr-grpo": from_rewards(dr_grpo_advantage),
    "rloo": from_rewards(rloo_advantage),
}


def group_advantage(
    reward: Float[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    *,
    kind: Literal["grpo", "dr-grpo", "rloo"] = "grpo",
    preset: PresetName = "tokencredit",
) -> Float[Tensor, " seq"]:
    """Compare each response with its siblings. NaN rewards are left out and receive 0 (preset "verl" takes them as 0)."""
    if kind not in ADVANTAGES:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(ADVANTAGES)}")
    if reward.shape != group.shape:
        raise ValueError(f"reward holds {reward.numel()} responses but group holds {group.numel()}; they must be the same")
    return ADVANTAGES[kind](AdvantageInputs(reward, group), {}, preset=preset).advantage


__all__ = ["ADVANTAGES", "AdvantageInputs", "AdvantageOutcome", "group_advantage"]
