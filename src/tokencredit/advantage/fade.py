"""FADE (2607.01490) and its two static probes: advantages weighted by the difficulty of the prompt and by sign."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.base import PRESETS, AdvantageInputs, AdvantageOutcome, reward_of_preset, with_edge_cases
from tokencredit.masked import group_statistics, masked_mean
from tokencredit.types import State


def focal_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, alpha: float = 1.0, delta: float = 1.0
) -> Float[Tensor, " seq"]:
    """The formula of FADE and its probes: A_i = q^(alpha - 1) (R_i - mean_g), over delta where R_i < mean_g; q = max(0, 1 - mean_g).

    q = 0 has weight 0, but 0^0 is 1: alpha 1 and delta 1 are Dr.GRPO to the bit. Below alpha 1 the power has a pole at q = 0, where
    the mass q^alpha vanishes, so the weight is 0 there too. A group of one and a NaN reward give 0.
    """
    ours = PRESETS["tokencredit"]
    value = reward_of_preset(reward, ours)
    count, mean, _ = group_statistics(value, group)
    unsolved = 1 - mean
    # A mean of 1 up to rounding counts as 1: near the pole the rounding would determine the weight.
    solved = unsolved <= 4 * torch.finfo(value.dtype).eps
    focus = torch.where(solved, torch.full_like(mean, float(alpha == 1)), unsolved.pow(alpha - 1))
    centred = value - mean
    signed = torch.where(value < mean, centred / delta, centred)
    return with_edge_cases(focus * signed, value, count, ours)


def fade_alpha(solve_rate: float, *, alpha_max: float = 3.0) -> float:
    """clip(3 (1 - p) / (2 p), 1, alpha_max): with alpha_max 3 the strongest focus up to p = 1/3, and none from p = 0.6 on."""
    odds_against = (1 - solve_rate) / solve_rate if solve_rate > 0 else math.inf
    return min(max(1.5 * odds_against, 1.0), alpha_max)


def fade_delta(entropy: float, target_entropy: float, *, delta_min: float = 0.3) -> float:
    """clip(1 + H - H*, delta_min, 1): failures weigh 1 / delta, which grows as the entropy H falls below its target H*."""
    return min(max(1 + entropy - target_entropy, delta_min), 1.0)


def fade_controller(
    state: State,
    *,
    solve_rate: float | None,
    entropy: float,
    alpha_max: float = 3.0,
    delta_min: float = 0.3,
    target_entropy: float | None = None,
    ema_new_weight: float = 0.02,
    initial_solve_rate: float = 0.5,
) -> State:
    """Update the running means with a batch, then compute alpha and delta from them.

    The means start at `initial_solve_rate` and at the first batch's entropy, half of which is H* if `target_entropy` is None. A
    solve rate of None (nothing graded) does not change its mean.
    """

    def running(old: float, new: float) -> float:
        return (1 - ema_new_weight) * old + ema_new_weight * new

    before = state or {"solve_rate": initial_solve_rate, "entropy": entropy, "initial_entropy": entropy}
    initial_entropy = before["initial_entropy"]
    mean_rate = before["solve_rate"] if solve_rate is None else running(before["solve_rate"], solve_rate)
    mean_entropy = running(before["entropy"], entropy)
    target = initial_entropy / 2 if target_entropy is None else target_entropy
    return {
        "solve_rate": mean_rate,
        "entropy": mean_entropy,
        "initial_entropy": initial_entropy,
        "alpha": fade_alpha(mean_rate, alpha_max=alpha_max),
        "delta": fade_delta(mean_entropy, target, delta_min=delta_min),
    }


def fade_advantage(
    inputs: AdvantageInputs,
    state: State,
    *,
    alpha_max: float = 3.0,
    delta_min: float = 0.3,
    target_entropy: float | None = None,
    ema_new_weight: float = 0.02,
    initial_solve_rate: float = 0.5,
) -> AdvantageOutcome:
    """FADE (2607.01490): `focal_advantage` with alpha and delta from `fade_controller`.

    Hard prompts weigh more while prompts are hard, and failures weigh more while entropy is low. The solve rate is the mean score of
    graded responses, before shaping and clipped to [0, 1].
    """
    if inputs.score is None:
        raise ValueError("score is missing; fade follows the solve rate, which is the verifier's score before shaping")
    if inputs.entropy is None or not math.isfinite(inputs.entropy):
        raise ValueError(f"entropy is {inputs.entropy}; fade follows the mean entropy of the response tokens, a finite number")
    graded = ~inputs.score.isnan()
    solved = float(masked_mean(inputs.score.double(), graded).clamp(0, 1))
    after = fade_controller(
        state,
        solve_rate=solved if graded.any() else None,
        entropy=inputs.entropy,
        alpha_max=alpha_max,
        delta_min=delta_min,
        target_entropy=target_entropy,
        ema_new_weight=ema_new_weight,
        initial_solve_rate=initial_solve_rate,
    )
    advantage = focal_advantage(inputs.reward, inputs.group, alpha=after["alpha"], delta=after["delta"])
    return AdvantageOutcome(advantage, after)


def power_advantage(
    reward: Float[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    *,
    alpha: float = 2.0,
    delta: float = 1.0,
    scale: Literal["none", "peak"] = "none",
) -> Float[Tensor, " seq"]:
    """FADE's static difficulty probe: C x `focal_advantage`, which has mass C p (1 - p)^alpha on each side, over delta on the failures.

    Prompts that are rarely solved weigh more. C is 1 with `scale` "none"; with "peak" the largest mass, at p = 1 / (1 + alpha), is 1/4.
    """
    if scale not in ("none", "peak"):
        raise ValueError(f"scale is {scale!r}; it must be none or peak")
    constant = (1 + alpha) / 4 * (1 + 1 / alpha) ** alpha if scale == "peak" else 1.0
    return constant * focal_advantage(reward, group, alpha=alpha, delta=delta)


def asym_advantage(reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, delta: float = 0.5) -> Float[Tensor, " seq"]:
    """FADE's static sign probe: A_i = R_i - mean_g, over delta where R_i < mean_g; a group of one and a NaN reward give 0."""
    return focal_advantage(reward, group, alpha=1.0, delta=delta)
