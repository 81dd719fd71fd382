"""Clip-Cov and KL-Cov (2505.22617): objectives that treat the tokens of an optimizer step by the covariance of credit and log-prob."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.objective.base import Objective, TokenInputs, importance_ratio
from tokencredit.objective.clip import clipped_surrogate

Columns = TypeVar("Columns", bound=tuple[Tensor, ...])


def response_ids(inputs: TokenInputs) -> Int[Tensor, " seq"]:
    """The ids of the responses; an error without them, because a statistic of the optimizer step is looked up by id."""
    if inputs.row is None:
        raise ValueError("row is missing; an objective with a statistic of the optimizer step needs the responses' ids")
    return inputs.row


def join_step(micro_batches: Sequence[Columns]) -> Columns:
    """The micro-batches' columns joined and sorted by the first one, the ids: sums and ties then do not depend on the micro-batches."""
    joined = [torch.cat(column) for column in zip(*micro_batches, strict=True)]
    order = joined[0].argsort()
    columns = type(micro_batches[0])(*(column[order] for column in joined))
    if bool((columns[0].diff() == 0).any()):
        raise ValueError("row gives two responses of one optimizer step the same id; every response needs its own")
    return columns


class StepTokens(NamedTuple):
    """The mask's tokens of an optimizer step, sorted by id."""

    token_id: Int[Tensor, " tok"]
    logp: Float[Tensor, " tok"]
    old_logp: Float[Tensor, " tok"]
    credit: Float[Tensor, " tok"]


Choose = Callable[[StepTokens, int], Int[Tensor, " chosen"]]
"""(tokens, seed) -> indices of the chosen tokens."""


def token_ids(inputs: TokenInputs) -> Int[Tensor, "seq tok"]:
    """Row x 2^32 + position: does not depend on the micro-batches, and sorts by (row, position)."""
    return response_ids(inputs).long()[:, None] * 2**32 + torch.arange(inputs.mask.shape[1], device=inputs.mask.device)


def credit_covariance(tokens: StepTokens) -> Float[Tensor, " tok"]:
    """(a - mean a)(logp - mean logp), means over the tokens of the optimizer step; in float64."""
    credit, logp = tokens.credit.double(), tokens.logp.double()
    return (credit - credit.mean()) * (logp - logp.mean())


def chosen_count(tokens: StepTokens, share: float) -> int:
    """max(1, int(share x N))."""
    return max(int(share * len(tokens.token_id)), 1)


class ChosenTokens:
    """Statistic: the ids of the tokens that `choose` selects from an optimizer step.

    Ids instead of a threshold, because the training pass may round its log-probs differently.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._micro_batches: list[StepTokens] = []
        self._seeds: set[int] = set()

    def add(self, inputs: TokenInputs) -> None:
        columns = (token_ids(inputs), inputs.logp, inputs.old_logp, inputs.credit)
        self._micro_batches.append(StepTokens(*(column.detach()[inputs.mask] for column in columns)))
        self._seeds.add(inputs.seed)
        if len(self._seeds) > 1:
            raise ValueError(f"seed differs between the micro-batches of one optimizer step: {', '.join(map(str, sorted(self._seeds)))}")

    def finish(self) -> Int[Tensor, " chosen"]:
        tokens = join_step(self._micro_batches)
        return tokens.token_id[self._choose(tokens, min(self._seeds))]


def is_chosen(inputs: TokenInputs, chosen: Int[Tensor, " chosen"]) -> Bool[Tensor, "seq tok"]:
    return torch.isin(token_ids(inputs), chosen)


def _int64(number: int) -> int:
    """The low 64 bits as a signed integer."""
    return (number + 2**63) % 2**64 - 2**63


def _scramble(bits: Int[Tensor, " tok"]) -> Int[Tensor, " tok"]:
    """SplitMix64's finisher: a bijection of 64-bit integers in which every input bit affects every output bit; products wrap around."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ _shift(bits, shift)) * _int64(factor)
    return bits ^ _shift(bits, 31)


def _shift(bits: Int[Tensor, " tok"], by: int) -> Int[Tensor, " tok"]:
    """Logical right shift; torch's own repeats the sign bit."""
    return (bits >> by) & (2 ** (64 - by) - 1)


def random_keys(token_id: Int[Tensor, " tok"], *, seed: int) -> Int[Tensor, " tok"]:
    """A random integer for every token, a function of its id and the seed only."""
    return _scramble(_scramble(token_id) ^ _int64(seed))


def clip_cov(
    *, clip_low: float = 0.2, clip_high: float = 0.2, share: float = 2e-4, cov_low: float = 1.0, cov_high: float = 5.0
) -> Objective:
    """Clip-Cov (2505.22617): L_it = PPO clip, but 0 on max(1, int(share N)) tokens drawn from those with cov_low < cov < cov_high.

    cov = (a - mean a)(logp - mean logp) over the N masked tokens of the optimizer step. A token that the clip already cuts to no
    gradient is not a candidate. With fewer candidates, all of them are drawn.
    """

    def choose(tokens: StepTokens, seed: int) -> Int[Tensor, " chosen"]:
        covariance = credit_covariance(tokens)
        ratio = importance_ratio(tokens.logp, tokens.old_logp)
        clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * tokens.credit < ratio * tokens.credit
        candidates = (~clipped & (covariance > cov_low) & (covariance < cov_high)).nonzero()[:, 0]
        order = random_keys(tokens.token_id[candidates], seed=seed).argsort(stable=True)
        return candidates[order[: chosen_count(tokens, share)]]

    def token_loss(inputs: TokenInputs, statistic: Int[Tensor, " chosen"]) -> Tensor:
        surrogate = clipped_surrogate(inputs.logp, inputs.old_logp, inputs.credit, clip_low=clip_low, clip_high=clip_high)
        return -surrogate.masked_fill(is_chosen(inputs, statistic), 0.0)

    return Objective(token_loss=token_loss, statistic=partial(ChosenTokens, choose), silent_without_credit=True)


def kl_cov(*, share: float = 2e-4, penalty: float = 1.0) -> Objective:
    """KL-Cov (2505.22617): L_it = -rho a, plus penalty |logp - old_logp| on the max(1, int(share N)) tokens of largest cov.

    cov = (a - mean a)(logp - mean logp) over the N masked tokens of the optimizer step; ties go to the earlier (row, position). A
    token without credit can be penalised. At ratio 1 the penalty has no gradient.
    """

    def choose(tokens: StepTokens, seed: int) -> Int[Tensor, " chosen"]:
        return credit_covariance(tokens).argsort(descending=True, stable=True)[: chosen_count(tokens, share)]

    def token_loss(inputs: TokenInputs, statistic: Int[Tensor, " chosen"]) -> Tensor:
        old_logp = inputs.old_logp.detach()
        loss = -importance_ratio(inputs.logp, old_logp) * inputs.credit.detach()
        distance = (inputs.logp - old_logp).abs()
        return loss + penalty * distance * is_chosen(inputs, statistic)

    return Objective(token_loss=token_loss, statistic=partial(ChosenTokens, choose))
