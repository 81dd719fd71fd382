"""A batch of groups at a fixed policy (sampled, graded, scored), continuations of its prefixes, and gradients of credit on it.

A first-order update is linear in what each token's log-prob receives: g = sum_it a_it grad log pi(o_it). So one forward pass serves every
method, and each method with a direction of its own takes one backward pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.advantage.group import rloo_advantage
from tokencredit.batching.microbatch import cut_micro_batches
from tokencredit.config.train import TrainConfig
from tokencredit.forward.padded import precision, response_extent, response_logits, row_cost, trainable_parameters
from tokencredit.kernels import token_statistics
from tokencredit.lab.credit.prefix_tree import Draw, Request, Tail, Truth, measure_truth
from tokencredit.masked import group_statistics
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.generate import ROWS_AT_ONCE, generate
from tokencredit.rollout.grading import grade_rollouts
from tokencredit.rollout.sampler import sample
from tokencredit.rollout.scoring import needs_scoring_pass, score_tokens
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task, verdicts
from tokencredit.types import Rollouts, TokenScores


class SampledBatch(NamedTuple):
    problems: Sequence[Problem]
    """`problems[g]` is the problem of group g."""
    rollouts: Rollouts
    evidence: TokenScores
    score: Float[Tensor, " seq"]


def draw_batch(
    policy: Policy, task: Task, config: TrainConfig, *, prompts: int, purpose: str, number: int = 0, keep_hidden: bool = False
) -> SampledBatch:
    """Sample, grade and score groups on training problems. Batches with another purpose or number are independent."""
    problems = task.problems(prompts, split="train", seed=derive_seed(config.seed, f"{purpose}-prompts", number))
    in_a_pass = needs_scoring_pass(config)
    params = SamplingParams.from_config(config, seed=derive_seed(config.seed, f"{purpose}-sample", number))
    rollouts, evidence = generate(policy, task, problems, replace(params, keep_hidden=keep_hidden and not in_a_pass))
    if in_a_pass:
        evidence = score_tokens(config, policy.model, rollouts, keep_hidden=keep_hidden)
    return SampledBatch(problems, rollouts, evidence, grade_rollouts(policy, task, problems, rollouts))


class Facts(NamedTuple):
    """Statistics of the policy, summed over batches."""

    rollouts: int = 0
    right: float = 0.0
    """Sum of scores."""
    graded: int = 0
    groups: int = 0
    mixed: int = 0
    tokens: int = 0
    entropy: float = 0.0
    """Summed over tokens."""

    def with_batch(self, batch: SampledBatch) -> "Facts":
        graded, mask = ~batch.score.isnan(), batch.rollouts.mask
        spread = group_statistics(batch.score, batch.rollouts.group).std > 0
        return Facts(
            self.rollouts + len(batch.score),
            self.right + float(batch.score[graded].double().sum()),
            self.graded + int(graded.sum()),
            self.groups + len(batch.problems),
            self.mixed + len(torch.unique(batch.rollouts.group[spread])),
            self.tokens + int(mask.sum()),
            self.entropy + float(batch.evidence.entropy[mask].double().sum()),
        )

    def to_json(self) -> dict[str, float | int | None]:
        def per(value: float, count: int) -> float | None:
            return value / count if count else None

        return {
            "rollouts": self.rollouts,
            "accuracy": per(self.right, self.graded),
            "mixed_groups": per(self.mixed, self.groups),
            "entropy": per(self.entropy, self.tokens),
            "length": per(self.tokens, self.rollouts),
        }


def continuing(policy: Policy, task: Task, batch: SampledBatch, config: TrainConfig, *, seed: int) -> Draw:
    """A function that samples continuations of prefixes. Requests of one level have prefixes of one length; requests for similar numbers
    of continuations share a call.
    """
    prompts = {group: batch.rollouts.prompts[row] for row, group in reversed(list(enumerate(batch.rollouts.group.tolist())))}
    calls = 0

    def draw(requests: Sequence[Request]) -> list[list[Tail]]:
        nonlocal calls
        order = sorted(range(len(requests)), key=lambda index: (-requests[index].lacking, index))
        found: list[list[Tail]] = [[] for _ in requests]
        while order:
            copies = requests[order[0]].lacking
            at_once = max(1, ROWS_AT_ONCE // copies)
            chosen, order = order[:at_once], order[at_once:]
            calls += 1
            prefixes = [(*prompts[requests[index].group], *requests[index].prefix) for index in chosen]
            params = SamplingParams.from_config(config, seed=derive_seed(seed, "truth", calls), group_size=copies)
            limit = config.sampling.max_new_tokens - len(requests[chosen[0]].prefix)
            sampled = sample(policy, prefixes, replace(params, max_new_tokens=limit)).rollouts
            rows = [row[:length] for row, length in zip(sampled.tokens.tolist(), sampled.mask.sum(1).tolist(), strict=True)]
            for place, index in enumerate(chosen):
                own = [tuple(row) for row in rows[place * copies : (place + 1) * copies]]
                scores = _scores(policy, task, batch.problems[requests[index].group], requests[index].prefix, own)
                # A continuation that could not be graded does not count for the value.
                found[index] = [Tail(tail, scores[tail]) for tail in own if scores[tail] == scores[tail]]
        return found

    return draw


def _scores(
    policy: Policy, task: Task, problem: Problem, prefix: tuple[int, ...], tails: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], float]:
    """Decode and grade each distinct continuation once; many are equal."""
    different = list(dict.fromkeys(tails))
    found = verdicts(task, [(problem, policy.answer([*prefix, *tail])) for tail in different])
    return {tail: verdict.score for tail, verdict in zip(different, found, strict=True)}


def truth_of(
    policy: Policy,
    task: Task,
    batch: SampledBatch,
    config: TrainConfig,
    *,
    continuations: int,
    seed: int,
    notify: Callable[[int, int], None],
) -> Truth:
    rollouts = batch.rollouts
    return measure_truth(
        rollouts.tokens.cpu(),
        rollouts.mask.cpu(),
        rollouts.group.cpu(),
        batch.evidence.logp.cpu(),
        batch.score.cpu(),
        continuing(policy, task, batch, config, seed=seed),
        continuations=continuations,
        notify=notify,
    )


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
    """Accumulates the reference gradient from batches, alternating between two halves.

    g* = mean over rollouts of (R_i - mean of the siblings) sum_t grad log pi(o_it): unbiased for the gradient of the expected score
    whatever the group size. grad H = gradient of the mean entropy per token at the states that were visited, states held fixed; it
    varies little, so it is computed for every ENTROPY_EVERY-th pair of batches only.
    """

    ENTROPY_EVERY = 4

    def __init__(self, policy: Policy, config: TrainConfig) -> None:
        size = sum(parameter.numel() for parameter in trainable_parameters(policy.model).values())
        self.policy, self.config = policy, config
        self.sums = [torch.zeros(size, dtype=torch.float64, device=policy.device) for _ in range(2)]
        self.entropy_sums = [torch.zeros(size, dtype=torch.float64, device=policy.device) for _ in range(2)]
        self.rollouts, self.tokens, self.lots = [0, 0], [0, 0], 0

    def add(self, batch: SampledBatch) -> None:
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
"""Tolerance of `alike`, relative to the largest entry after scaling to length 1."""


def unit(value: Tensor) -> Tensor:
    """Scaled to length 1 in float64; zeros stay zeros."""
    value = value.double()
    return value / value.norm().clamp(min=torch.finfo(torch.float64).tiny)


def alike(values: Mapping[str, Tensor]) -> dict[str, str]:
    """Name -> the first name whose values are a positive multiple of its own; its own name if there is none."""
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
    """Names that are multiples of each other in every batch, by the same factor: only then their means over batches are, too."""
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
