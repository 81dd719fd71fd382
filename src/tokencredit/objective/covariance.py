"""What Clip-Cov and KL-Cov share: how credit and log-prob vary together over the tokens of one optimizer step (2505.22617).

Clip-Cov: PPO clip, and a few tokens whose log-prob and credit vary together lose their gradient (2505.22617).

KL-Cov: unclipped surrogate, and a penalty on the tokens whose log-prob and credit vary together most (2505.22617).

Columns gathered over the micro-batches of an optimizer step, put into one order whatever the cut.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.objective.base import Objective, TokenInputs, importance_ratio
from tokencredit.objective.clip import clipped_surrogate

Columns = TypeVar("Columns", bound=tuple[Tensor, ...])


def row_names(inputs: TokenInputs) -> Int[Tensor, " seq"]:
    """The names of the responses, or a refusal: without them a statistic cannot be looked up again."""
    if inputs.row is None:
        raise ValueError("row is missing; an objective that looks at a whole optimizer step needs the responses' names")
    return inputs.row


def whole_step(parts: Sequence[Columns]) -> Columns:
    """The parts joined and sorted by their first column, the names, so that sums and ties come out the same for every cut."""
    joined = [torch.cat(column) for column in zip(*parts, strict=True)]
    order = joined[0].argsort()
    columns = type(parts[0])(*(column[order] for column in joined))
    if bool((columns[0].diff() == 0).any()):
        raise ValueError("row names two responses of one optimizer step alike; every response needs a name of its own")
    return columns


class StepTokens(NamedTuple):
    """The masked tokens of a step, sorted by name."""

    name: Int[Tensor, " tok"]
    logp: Float[Tensor, " tok"]
    old_logp: Float[Tensor, " tok"]
    credit: Float[Tensor, " tok"]


Choose = Callable[[StepTokens, int], Int[Tensor, " chosen"]]
"""(tokens, seed) -> places of the chosen ones."""


def token_names(inputs: TokenInputs) -> Int[Tensor, "seq tok"]:
    """What a token is called however the step is cut: row x 2^32 + position, so names sort by (row, position)."""
    return row_names(inputs).long()[:, None] * 2**32 + torch.arange(inputs.mask.shape[1], device=inputs.mask.device)


def credit_covariance(tokens: StepTokens) -> Float[Tensor, " tok"]:
    """(a - mean a)(logp - mean logp), the means over the tokens of the step; in float64."""
    credit, logp = tokens.credit.double(), tokens.logp.double()
    return (credit - credit.mean()) * (logp - logp.mean())


def number_of(tokens: StepTokens, share: float) -> int:
    """The whole part of share x N, at least 1."""
    return max(int(share * len(tokens.name)), 1)


class ChosenTokens:
    """Gathers the tokens of a step; finished, it is the names of those that `choose` picks.

    Names and no threshold, because the pass that uses them may round its log-probs differently.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._parts: list[StepTokens] = []
        self._seeds: set[int] = set()

    def add(self, inputs: TokenInputs) -> None:
        columns = (token_names(inputs), inputs.logp, inputs.old_logp, inputs.credit)
        self._parts.append(StepTokens(*(column.detach()[inputs.mask] for column in columns)))
        self._seeds.add(inputs.seed)
        if len(self._seeds) > 1:
            raise ValueError(f"seed differs between the micro-batches of one optimizer step: {', '.join(map(str, sorted(self._seeds)))}")

    def finish(self) -> Int[Tensor, " chosen"]:
        tokens = whole_step(self._parts)
        return tokens.name[self._choose(tokens, min(self._seeds))]


def is_chosen(inputs: TokenInputs, chosen: Int[Tensor, " chosen"]) -> Bool[Tensor, "seq tok"]:
    return torch.isin(token_names(inputs), chosen)


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


def kl_cov(*, share: float = 2e-4, penalty: float = 1.0) -> Objective:
    """L_it = -rho a; + penalty |logp - old_logp| on the max(1, int(share N)) tokens of largest cov.

    cov = (a - mean a)(logp - mean logp) over the N masked tokens of the step; ties go to the earlier (row, position). A
    token without credit can be penalised. At ratio 1 the penalty has no gradient.
    """

    def choose(tokens: StepTokens, seed: int) -> Int[Tensor, " chosen"]:
        return credit_covariance(tokens).argsort(descending=True, stable=True)[: number_of(tokens, share)]

    def token_loss(inputs: TokenInputs, statistic: Int[Tensor, " chosen"]) -> Tensor:
        old_logp = inputs.old_logp.detach()
        loss = -importance_ratio(inputs.logp, old_logp) * inputs.credit.detach()
        distance = (inputs.logp - old_logp).abs()
        return loss + penalty * distance * is_chosen(inputs, statistic)

    return Objective(token_loss=token_loss, statistic=partial(ChosenTokens, choose))
