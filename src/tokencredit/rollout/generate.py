"""Responses to a task's problems: sampled in one piece or in turns, or taken from the task's demonstrations."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import Sampled, SamplingParams
from tokencredit.rollout.multi_turn import encode_reply, generate_turns
from tokencredit.rollout.sampler import sample
from tokencredit.seeds import derive_seed
from tokencredit.tasks import DemonstratingTurns, HasDemonstrations, MultiTurn, Problem, Task, revision_prompt
from tokencredit.types import Rollouts

ROWS_AT_ONCE = 1024
"""Responses sampled together; a larger batch costs memory and is no faster."""


def generate(policy: Policy, task: Task, problems: Sequence[Problem], params: SamplingParams) -> Sampled:
    """`group_size` responses to each problem, `group` numbering the problems."""
    if isinstance(task, MultiTurn):
        return generate_turns(policy, task, problems, params)
    return sample(policy, [policy.ask(problem.prompt) for problem in problems], params)


class _Demonstration(NamedTuple):
    prompt: list[int]
    tokens: list[int]
    mask: list[bool]
    """True for tokens that the policy would write."""

    def cut(self, limit: int) -> "_Demonstration":
        return _Demonstration(self.prompt, self.tokens[:limit], self.mask[:limit])


def demonstrated(policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig, *, seed: int) -> Rollouts:
    """One demonstration per problem, for a supervised warm start; log-probs are 0 until a scoring pass fills them in."""
    rng = Random(derive_seed(seed, "revised"))
    demonstrations: list[_Demonstration] = []
    for index, problem in enumerate(problems):
        if isinstance(task, DemonstratingTurns):
            demonstrations.append(_conversation(policy, task, problem, seed=derive_seed(seed, "demonstration", index)))
        elif isinstance(task, HasDemonstrations):
            revised = rng.random() < config.revision_share
            demonstrations.append(_response(policy, task, problems, index, seed=seed, revised=revised))
        else:
            raise ConfigError(
                f"task {config.task.type!r} has no demonstrations to learn from; give it a method demonstrate(problem, *, seed)"
            )
    limit = config.sampling.max_new_tokens
    fits = [sum(one.mask) <= limit for one in demonstrations]
    # The policy cannot write a demonstration over the limit; its first tokens only keep the row.
    demonstrations = [one if fit else one.cut(limit) for one, fit in zip(demonstrations, fits, strict=True)]
    tokens = pad_sequence([torch.tensor(one.tokens) for one in demonstrations], batch_first=True).to(policy.device)
    return Rollouts(
        prompts=tuple(tuple(one.prompt) for one in demonstrations),
        tokens=tokens,
        mask=pad_sequence([torch.tensor(one.mask) for one in demonstrations], batch_first=True).to(policy.device),
        group=torch.arange(len(problems), device=policy.device),
        behavior_logp=torch.zeros(tokens.shape, device=policy.device),
        finished=torch.tensor(fits, device=policy.device),
    )


def _response(
    policy: Policy, task: HasDemonstrations, problems: Sequence[Problem], index: int, *, seed: int, revised: bool
) -> _Demonstration:
    problem = problems[index]
    response = policy.prompting.written(task.demonstrate(problem, seed=derive_seed(seed, "demonstration", index)))
    prompt = revision_prompt(task, problem, _wrong_response(task, problems, index, seed), response) if revised else problem.prompt
    tokens = policy.finish(response)
    return _Demonstration(policy.ask(prompt), tokens, [True] * len(tokens))


def _conversation(policy: Policy, task: DemonstratingTurns, problem: Problem, *, seed: int) -> _Demonstration:
    """Turns of the policy, which are learned, with the environment's replies, which are only read."""
    turns = task.demonstrate_turns(problem, seed=seed)
    demonstration = _Demonstration(policy.ask(problem.prompt), [], [])
    for count, turn in enumerate(turns, 1):
        written = policy.finish(policy.prompting.written(turn))
        reply_ids = encode_reply(policy, task.reply(problem, turns[:count]) or "", after=written) if count < len(turns) else []
        demonstration.tokens.extend([*written, *reply_ids])
        demonstration.mask.extend([True] * len(written) + [False] * len(reply_ids))
    return demonstration


def _wrong_response(task: HasDemonstrations, problems: Sequence[Problem], index: int, seed: int) -> str:
    """A well-formed wrong response: the right response to another problem."""
    other = problems[(index + 1) % len(problems)]
    return task.demonstrate(other, seed=derive_seed(seed, "failed", index))
