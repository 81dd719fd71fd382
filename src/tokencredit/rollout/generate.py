"""Responses to problems: one each, or in turns where the task converses. Whoever samples for a task asks here.

A batch of a task's own right responses, for a supervised warm start: every token of a demonstration receives credit 1.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import Sampled, SamplingParams
from tokencredit.rollout.multi_turn import generate_turns, hear
from tokencredit.rollout.sampler import sample
from tokencredit.seeds import derive_seed
from tokencredit.tasks import DemonstratingTurns, HasDemonstrations, MultiTurn, Problem, Task, revision_prompt
from tokencredit.types import Rollouts

ROWS_AT_ONCE = 1024
"""Responses sampled together: a larger batch costs memory and is no faster."""


def generate(policy: Policy, task: Task, problems: Sequence[Problem], params: SamplingParams) -> Sampled:
    """`group_size` responses to each problem, `group` numbering the problems."""
    if isinstance(task, MultiTurn):
        return generate_turns(policy, task, problems, params)
    return sample(policy, [policy.ask(problem.prompt) for problem in problems], params)


class Shown(NamedTuple):
    prompt: list[int]
    tokens: list[int]
    mask: list[bool]
    """What the policy would write itself."""

    def cut(self, limit: int) -> "Shown":
        return Shown(self.prompt, self.tokens[:limit], self.mask[:limit])


def demonstrated(policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig, *, seed: int) -> Rollouts:
    """One response to each problem, as the policy itself would have written it; its log-probs are for a pass to find."""
    rng = Random(derive_seed(seed, "revised"))
    shown: list[Shown] = []
    for index, problem in enumerate(problems):
        if isinstance(task, DemonstratingTurns):
            shown.append(_conversation(policy, task, problem, seed=derive_seed(seed, "demonstration", index)))
        elif isinstance(task, HasDemonstrations):
            revised = rng.random() < config.revision_share
            shown.append(_response(policy, task, problems, index, seed=seed, revised=revised))
        else:
            raise ConfigError(
                f"task {config.task.type!r} has no demonstrations to learn from; give it a method demonstrate(problem, *, seed)"
            )
    limit = config.sampling.max_new_tokens
    fits = [sum(one.mask) <= limit for one in shown]
    # One that is too long cannot be written by the policy either; what is left of it only holds its place.
    shown = [one if whole else one.cut(limit) for one, whole in zip(shown, fits, strict=True)]
    tokens = pad_sequence([torch.tensor(one.tokens) for one in shown], batch_first=True).to(policy.device)
    return Rollouts(
        prompts=tuple(tuple(one.prompt) for one in shown),
        tokens=tokens,
        mask=pad_sequence([torch.tensor(one.mask) for one in shown], batch_first=True).to(policy.device),
        group=torch.arange(len(problems), device=policy.device),
        behavior_logp=torch.zeros(tokens.shape, device=policy.device),
        finished=torch.tensor(fits, device=policy.device),
    )


def _response(policy: Policy, task: HasDemonstrations, problems: Sequence[Problem], index: int, *, seed: int, revised: bool) -> Shown:
    problem = problems[index]
    response = policy.prompting.written(task.demonstrate(problem, seed=derive_seed(seed, "demonstration", index)))
    asked = revision_prompt(task, problem, _failed(task, problems, index, seed), response) if revised else problem.prompt
    tokens = policy.finish(response)
    return Shown(policy.ask(asked), tokens, [True] * len(tokens))


def _conversation(policy: Policy, task: DemonstratingTurns, problem: Problem, *, seed: int) -> Shown:
    """What the environment says in between is read and not learned."""
    turns = task.demonstrate_turns(problem, seed=seed)
    shown = Shown(policy.ask(problem.prompt), [], [])
    for count, turn in enumerate(turns, 1):
        written = policy.finish(policy.prompting.written(turn))
        heard = hear(policy, task.reply(problem, turns[:count]) or "", after=written) if count < len(turns) else []
        shown.tokens.extend([*written, *heard])
        shown.mask.extend([True] * len(written) + [False] * len(heard))
    return shown


def _failed(task: HasDemonstrations, problems: Sequence[Problem], index: int, seed: int) -> str:
    """A wrong response that is written well: what is right for another problem."""
    other = problems[(index + 1) % len(problems)]
    return task.demonstrate(other, seed=derive_seed(seed, "failed", index))
