"""Advantage methods: one number per response. `ADVANTAGES` is the table: name -> method."""

from typing import Literal, get_args

from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.base import Advantage, AdvantageInputs, AdvantageOutcome, PresetName, from_lengths, from_rewards, from_scores
from tokencredit.advantage.fade import asym_advantage, fade_advantage, power_advantage
from tokencredit.advantage.group import (
    c_rf_advantage,
    dr_grpo_advantage,
    gpg_advantage,
    grpo_advantage,
    opo_advantage,
    pass_at_k_advantage,
    remax_stage,
    rloo_advantage,
)
from tokencredit.advantage.whitened import reinforce_pp_advantage, reinforce_pp_baseline_advantage

ADVANTAGES: dict[str, Advantage] = {
    "grpo": from_rewards(grpo_advantage),
    "dr-grpo": from_rewards(dr_grpo_advantage),
    "rloo": from_rewards(rloo_advantage),
    "reinforce++": from_lengths(reinforce_pp_advantage),
    "reinforce++-baseline": from_lengths(reinforce_pp_baseline_advantage),
    "opo": from_lengths(opo_advantage),
    "gpg": from_rewards(gpg_advantage),
    "pass-at-k": from_rewards(pass_at_k_advantage),
    "fade": fade_advantage,
    "power": from_rewards(power_advantage),
    "asym": from_rewards(asym_advantage),
    "c-rf": from_scores(c_rf_advantage),
    "remax": remax_stage,
}

GroupAdvantageKind = Literal["grpo", "dr-grpo", "rloo", "reinforce++", "reinforce++-baseline", "opo", "gpg", "pass-at-k"]


def group_advantage(
    reward: Float[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    *,
    kind: GroupAdvantageKind = "grpo",
    preset: PresetName = "tokencredit",
    length: Int[Tensor, " seq"] | None = None,
) -> Float[Tensor, " seq"]:
    """The advantage of each response over its siblings, or over the batch, by the method `kind`.

    A NaN reward is left out of the statistics and receives 0 (preset "verl": it counts as 0). `length`, the loss tokens of each
    response, is the weight of a response in reinforce++, reinforce++-baseline and opo.
    """
    kinds = get_args(GroupAdvantageKind)
    if kind not in kinds:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(kinds)}")
    if reward.shape != group.shape:
        raise ValueError(f"reward holds {reward.numel()} responses but group holds {group.numel()}; they must be the same")
    if length is not None and length.shape != reward.shape:
        raise ValueError(f"reward holds {reward.numel()} responses but length holds {length.numel()}; they must be the same")
    return ADVANTAGES[kind](AdvantageInputs(reward, group, length), {}, preset=preset).advantage


__all__ = ["ADVANTAGES", "AdvantageInputs", "AdvantageOutcome", "group_advantage"]
