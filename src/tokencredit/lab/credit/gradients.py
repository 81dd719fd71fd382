"""Gradients in parameter space. A first-order update is linear in what each token's log-prob receives: g = sum_it a_it grad log pi(o_it).

So one forward pass serves every method, and each different method takes one backward pass.

Which of many per-token numbers point the same way: what is alike needs only one backward pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.advantage.group import rloo_advantage
from tokencredit.batching.microbatch import cut_micro_batches
from tokencredit.config.train import TrainConfig
from tokencredit.forward.padded import precision, response_extent, response_logits, row_cost, trainable_parameters
from tokencredit.kernels import token_statistics
from tokencredit.lab.credit.batch import Drawn
from tokencredit.policy.policy import Policy
from tokencredit.types import Rollouts


class _Pass(NamedTuple):
    rows: Tensor
    width: int
    logp: Float[Tensor, "seq tok"]
    entropy: Float[Tensor, "seq tok"]
    """Both with gradient."""


def _passes(policy: Policy, rollouts: Rollouts, config: TrainConfig, wanted: Bool[Tensor, " seq"]) -> Iterator[_Pass]:
    """Forward over the wanted rows in micro-batches."""
    cost, extent = row_cost(rollouts), response_extent(rollouts.mask)
    rows = [row for row in wanted.nonzero()[:, 0].tolist() if int(extent[row])]
    for chosen in cut_micro_batches(rows, cost, max_tokens=config.optimizer.max_tokens):
        index = torch.tensor(chosen, device=rollouts.tokens.device)
        width = int(extent[index].max())
        tokens = rollouts.tokens[index, :width]
        with precision(policy.model, config.dtype):
            logits = response_logits(policy.model, [rollouts.prompts[row] for row in chosen], tokens).logits
        yield _Pass(index, width, *token_statistics(logits, tokens, temperature=config.sampling.temperature))


def _flat(policy: Policy, output: Tensor, weight: Tensor, *, again: bool) -> Tensor:
    parameters = list(trainable_parameters(policy.model).values())
    found = torch.autograd.grad(output, parameters, weight.to(output), retain_graph=again, materialize_grads=True)
    return torch.cat([part.flatten() for part in found]).float()


def gradients_of(
    policy: Policy, rollouts: Rollouts, ascents: Mapping[str, Float[Tensor, "seq tok"]], config: TrainConfig
) -> dict[str, Float[Tensor, " par"]]:
    """sum_it a_it grad log pi(o_it) for each of several a."""
    size = sum(parameter.numel() for parameter in trainable_parameters(policy.model).values())
    found = {name: torch.zeros(size, device=policy.device) for name in ascents}
    pushed = {name: (ascent != 0).any(1) for name, ascent in ascents.items()}
    wanted = torch.stack(list(pushed.values())).any(0)
    for rows, width, logp, _ in _passes(policy, rollouts, config, wanted):
        names = [name for name in ascents if bool(pushed[name][rows].any())]
        for name in names:
            found[name] += _flat(policy, logp, ascents[name][rows, :width], again=name != names[-1])
    return found


class Reference(NamedTuple):
    """The policy gradient of the expected score, from many rollouts in two independent halves, and the gradient of entropy."""

    halves: tuple[Float[Tensor, " par"], Float[Tensor, " par"]]
    entropy_halves: tuple[Float[Tensor, " par"], Float[Tensor, " par"]]

    @property
    def gradient(self) -> Float[Tensor, " par"]:
        return (self.halves[0] + self.halves[1]) / 2

    @property
    def entropy(self) -> Float[Tensor, " par"]:
        return (self.entropy_halves[0] + self.entropy_halves[1]) / 2


class ReferenceSum:
    """Lots of rollouts added one after another, odd ones to one half and even ones to the other.

    g* = mean over rollouts of (R_i - mean of the siblings) sum_t grad log pi(o_it): unbiased for the gradient of the expected score
    whatever the group size. grad H = gradient of the mean entropy per token at the states that were visited, states held fixed; it
    varies little, so every ENTROPY_EVERY-th pair of lots is enough.
    """

    ENTROPY_EVERY = 4

    def __init__(self, policy: Policy, config: TrainConfig) -> None:
        size = sum(parameter.numel() for parameter in trainable_parameters(policy.model).values())
        self.policy, self.config = policy, config
        self.sums = [torch.zeros(size, dtype=torch.float64, device=policy.device) for _ in range(2)]
        self.entropy_sums = [torch.zeros(size, dtype=torch.float64, device=policy.device) for _ in range(2)]
        self.rollouts, self.tokens, self.lots = [0, 0], [0, 0], 0

    def add(self, batch: Drawn) -> None:
        half, with_entropy = self.lots % 2, self.lots // 2 % self.ENTROPY_EVERY == 0
        self.lots += 1
        mask = batch.rollouts.mask
        advantage = rloo_advantage(batch.score, batch.rollouts.group).nan_to_num(0.0)
        ascent = advantage[:, None] * mask
        wanted = torch.ones_like(mask[:, 0]) if with_entropy else advantage != 0
        for rows, width, logp, entropy in _passes(self.policy, batch.rollouts, self.config, wanted):
            self.sums[half] += _flat(self.policy, logp, ascent[rows, :width], again=with_entropy)
            if with_entropy:
                self.entropy_sums[half] += _flat(self.policy, entropy, mask[rows, :width].to(entropy), again=False)
        self.rollouts[half] += int((~batch.score.isnan()).sum())
        self.tokens[half] += int(mask.sum()) if with_entropy else 0

    def finish(self) -> Reference:
        halves = [(value / max(1, count)).float() for value, count in zip(self.sums, self.rollouts, strict=True)]
        entropy = [(value / max(1, count)).float() for value, count in zip(self.entropy_sums, self.tokens, strict=True)]
        return Reference((halves[0], halves[1]), (entropy[0], entropy[1]))


TOLERANCE = 1e-5
"""Of the longest entry, after scaling to length 1."""


def unit(value: Tensor) -> Tensor:
    """Scaled to length 1 in float64; zeros stay zeros."""
    value = value.double()
    return value / value.norm().clamp(min=torch.finfo(torch.float64).tiny)


def alike(values: Mapping[str, Tensor]) -> dict[str, str]:
    """Name -> the first name whose values are a positive multiple of its own; its own name where there is none before it."""
    first: dict[str, Tensor] = {}
    found: dict[str, str] = {}
    for name, value in values.items():
        own = unit(value)
        largest = float(own.abs().max()) if own.numel() else 0.0
        same = (other for other, known in first.items() if float((known - own).abs().max()) <= TOLERANCE * max(largest, 1e-300))
        found[name] = next(same, name)
        if found[name] == name:
            first[name] = own
    return found


def together(found: Sequence[Mapping[str, str]], sizes: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Alike in every one of several batches, by the same factor: only then are their means over batches alike too."""
    agreed: dict[str, str] = {}
    for name in found[0]:
        seen = [one[name] for one in found]
        leaders = (other for other in agreed if agreed[other] == other and [one[other] for one in found] == seen)
        agreed[name] = next((other for other in leaders if _same_ratio(name, other, sizes)), name)
    return agreed


def _same_ratio(name: str, other: str, sizes: Sequence[Mapping[str, float]]) -> bool:
    ratios = [one[name] / one[other] for one in sizes if one[other] > 0]
    return not ratios or max(ratios) - min(ratios) <= 2 * TOLERANCE * max(ratios)


def stretched(gradient: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """The gradient of `own`, from that of `other`, which it is a positive multiple of."""
    size = float(other.double().norm())
    return gradient if own is other or not size else gradient * (float(own.double().norm()) / size)
