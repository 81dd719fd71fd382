"""What Clip-Cov and KL-Cov share: how credit and log-prob vary together over the tokens of one optimizer step (2505.22617)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.objective.base import TokenInputs
from tokencredit.objective.whole_step import row_names, whole_step


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
