"""Continuations of prefixes, drawn and graded in batches: where the prefix tree meets a policy and a task."""

from collections.abc import Callable, Sequence

from tokencredit.config.train import TrainConfig
from tokencredit.lab.credit.batch import Drawn
from tokencredit.lab.credit.prefix_tree import Draw, Request, Tail, Truth, measure_truth
from tokencredit.policy.policy import Policy
from tokencredit.rollout.sampler import sample
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task, verdicts
from tokencredit.trainer.evaluate import ROWS_AT_ONCE


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
            drawn = sample(
                policy,
                [(*prompts[requests[index].group], *requests[index].prefix) for index in chosen],
                group_size=copies,
                max_new_tokens=config.sampling.max_new_tokens - len(requests[chosen[0]].prefix),
                seed=derive_seed(seed, "truth", calls),
                temperature=config.sampling.temperature,
                dtype=config.dtype,
            ).rollouts
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
