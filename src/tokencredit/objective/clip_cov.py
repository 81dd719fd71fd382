"""Clip-Cov: PPO clip, and a few tokens whose log-prob and credit vary together lose their gradient (2505.22617)."""

from functools import partial

from jaxtyping import Int
from torch import Tensor

from tokencredit.objective.base import Objective, TokenInputs
from tokencredit.objective.clip import clipped_surrogate
from tokencredit.objective.covariance import ChosenTokens, StepTokens, credit_covariance, is_chosen, number_of
from tokencredit.objective.ratio import importance_ratio


def _int64(number: int) -> int:
    """The signed reading of the low 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def _scramble(bits: Int[Tensor, " tok"]) -> Int[Tensor, " tok"]:
    """SplitMix64's finisher, a one-to-one map of 64 bits in which every bit in touches every bit out; products wrap around."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ _shift(bits, shift)) * _int64(factor)
    return bits ^ _shift(bits, 31)


def _shift(bits: Int[Tensor, " tok"], by: int) -> Int[Tensor, " tok"]:
    """To the right, zeros coming in: torch alone would repeat the sign."""
    return (bits >> by) & (2 ** (64 - by) - 1)


def lots(name: Int[Tensor, " tok"], *, seed: int) -> Int[Tensor, " tok"]:
    """A random number for every token that depends on its name and the seed alone."""
    return _scramble(_scramble(name) ^ _int64(seed))


def clip_cov(
    *, clip_low: float = 0.2, clip_high: float = 0.2, share: float = 2e-4, cov_low: float = 1.0, cov_high: float = 5.0
) -> Objective:
    """L_it = PPO clip; 0 on max(1, int(share N)) tokens drawn from those with cov_low < cov < cov_high.

    cov = (a - mean a)(logp - mean logp) over the N masked tokens of the step. A token that the clip has silenced already
    is no candidate. With fewer candidates than that, all of them are drawn.
    """

    def choose(tokens: StepTokens, seed: int) -> Int[Tensor, " chosen"]:
        covariance = credit_covariance(tokens)
        ratio = importance_ratio(tokens.logp, tokens.old_logp)
        clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * tokens.credit < ratio * tokens.credit
        candidates = (~clipped & (covariance > cov_low) & (covariance < cov_high)).nonzero()[:, 0]
        order = lots(tokens.name[candidates], seed=seed).argsort(stable=True)
        return candidates[order[: number_of(tokens, share)]]

    def token_loss(inputs: TokenInputs, statistic: Int[Tensor, " chosen"]) -> Tensor:
        surrogate = clipped_surrogate(inputs.logp, inputs.old_logp, inputs.credit, clip_low=clip_low, clip_high=clip_high)
        return -surrogate.masked_fill(is_chosen(inputs, statistic), 0.0)

    return Objective(token_loss=token_loss, statistic=partial(ChosenTokens, choose), silent_without_credit=True)
