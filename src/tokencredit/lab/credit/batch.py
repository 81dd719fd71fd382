"""A batch of groups at the fixed policy: sampled, graded, scored.

Continuations of prefixes, drawn and graded in batches: where the prefix tree meets a policy and a task.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.train import TrainConfig
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


class Drawn(NamedTuple):
    problems: Sequence[Problem]
    """`problems[g]` is what group g answers."""
    rollouts: Rollouts
    evidence: TokenScores
    score: Float[Tensor, " seq"]


def draw_batch(
    policy: Policy, task: Task, config: TrainConfig, *, prompts: int, purpose: str, number: int = 0, keep_hidden: bool = False
) -> Drawn:
    """Training problems. Batches of different purpose or number are independent."""
    problems = task.problems(prompts, split="train", seed=derive_seed(config.seed, f"{purpose}-prompts", number))
    in_a_pass = needs_scoring_pass(config)
    params = SamplingParams.from_config(config, seed=derive_seed(config.seed, f"{purpose}-sample", number))
    rollouts, evidence = generate(policy, task, problems, replace(params, keep_hidden=keep_hidden and not in_a_pass))
    if in_a_pass:
        evidence = score_tokens(config, policy.model, rollouts, keep_hidden=keep_hidden)
    return Drawn(problems, rollouts, evidence, grade_rollouts(policy, task, problems, rollouts))


class Facts(NamedTuple):
    """What the policy is like, summed over batches."""

    rollouts: int = 0
    right: float = 0.0
    """Sum of scores."""
    graded: int = 0
    groups: int = 0
    mixed: int = 0
    tokens: int = 0
    entropy: float = 0.0
    """Summed over tokens."""

    def with_batch(self, batch: Drawn) -> "Facts":
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


def continuing(policy: Policy, task: Task, batch: Drawn, config: TrainConfig, *, seed: int) -> Draw:
    """Requests of one level have prefixes of one length. Those that lack about as many continuations share a call."""
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
            drawn = sample(policy, prefixes, replace(params, max_new_tokens=limit)).rollouts
            rows = [row[:length] for row, length in zip(drawn.tokens.tolist(), drawn.mask.sum(1).tolist(), strict=True)]
            for place, index in enumerate(chosen):
                own = [tuple(row) for row in rows[place * copies : (place + 1) * copies]]
                scores = _scores(policy, task, batch.problems[requests[index].group], requests[index].prefix, own)
                # What could not be graded says nothing about the value.
                found[index] = [Tail(tail, scores[tail]) for tail in own if scores[tail] == scores[tail]]
        return found

    return draw


def _scores(
    policy: Policy, task: Task, problem: Problem, prefix: tuple[int, ...], tails: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], float]:
    """Many continuations are alike; each different one is read and graded once."""
    different = list(dict.fromkeys(tails))
    found = verdicts(task, [(problem, policy.answer([*prefix, *tail])) for tail in different])
    return {tail: verdict.score for tail, verdict in zip(different, found, strict=True)}


def truth_of(
    policy: Policy, task: Task, batch: Drawn, config: TrainConfig, *, continuations: int, seed: int, tell: Callable[[int, int], None]
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
        tell=tell,
    )
