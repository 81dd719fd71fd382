"""Sampling in turns: the policy writes, the environment replies, and what it says is read but never learned from.

Each turn the conversations that are still going are sampled together, with all that was said so far as their prompt. So a
scoring pass over prompt and response sees the context that the sampler saw.

The policy's turns in a response: the runs of the mask. What lies between two of them the environment said.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tokencredit.errors import BadNumbersError, ConfigError
from tokencredit.policy.policy import Policy
from tokencredit.policy.prompting import render_reply
from tokencredit.policy.sampling import Sampled, SamplingParams
from tokencredit.rollout.sampler import sample
from tokencredit.seeds import derive_seed
from tokencredit.tasks import MultiTurn, Problem
from tokencredit.types import Rollouts, TokenScores


def on_cpu(rollouts: Rollouts) -> Rollouts:
    """To be read row by row: on a device every row would be waited for."""
    return replace(rollouts, tokens=rollouts.tokens.cpu(), mask=rollouts.mask.cpu(), behavior_logp=rollouts.behavior_logp.cpu())


def turn_tokens(rollouts: Rollouts, row: int) -> list[list[int]]:
    """The tokens of each turn; a response without an environment is one turn."""
    told = zip(rollouts.mask[row].tolist(), rollouts.tokens[row].tolist(), strict=True)
    return [[token for _, token in run] for sampled, run in groupby(told, key=lambda told: told[0]) if sampled]


def turns_of(policy: Policy, rollouts: Rollouts, row: int) -> list[str]:
    """What the environment and the verifier read of each turn."""
    return [policy.answer(tokens) for tokens in turn_tokens(rollouts, row)]


class _Turn(NamedTuple):
    tokens: list[int]
    seen: tuple[Tensor, ...]
    """Log-prob, entropy and, where asked for, hidden state of each token."""
    ended: bool


def _turns(drawn: Sampled) -> Iterator[_Turn]:
    read, ended = on_cpu(drawn.rollouts), drawn.rollouts.finished.tolist()
    logp, entropy, hidden, _ = drawn.evidence
    seen = [value for value in (logp, entropy, hidden) if value is not None]
    for row, tokens in enumerate(read.tokens):
        yield _Turn(tokens[read.mask[row]].tolist(), tuple(value[row] for value in seen), ended[row])


class _Conversation:
    """One row on its way: what was said, and what the sampler saw of the policy's part."""

    def __init__(self, policy: Policy, task: MultiTurn, problem: Problem, limit: int) -> None:
        self.policy, self.task, self.problem = policy, task, problem
        self.prompt = policy.ask(problem.prompt)
        self.left = limit
        """Tokens that the policy may still write."""
        self.turns: list[str] = []
        self.tokens: list[int] = []
        self.mask: list[bool] = []
        self.seen: list[tuple[Tensor, ...]] = []
        """What the sampler saw, piece by piece; zeros where the environment spoke."""
        self.finished = False

    def take_turn(self, turn: _Turn) -> bool:
        """Append the policy's turn and what the environment says to it; False: it is over."""
        written = turn.tokens[: self.left]
        self._append(written, True, tuple(value[: len(written)] for value in turn.seen))
        self.left -= len(written)
        self.turns.append(self.policy.answer(written))
        if not turn.ended or len(written) < len(turn.tokens):
            return False
        reply = self._reply() if len(self.turns) < self.task.turns else None
        self.finished = reply is None
        if reply is None or self.left == 0:
            return False
        heard = hear(self.policy, reply, after=written)
        if not heard:
            raise ConfigError(f"the environment said {reply!r}, which is no token of this model; a reply must be seen between two turns")
        self._append(heard, False, tuple(value.new_zeros(len(heard), *value.shape[1:]) for value in self.seen[-1]))
        return True

    def _append(self, tokens: list[int], sampled: bool, seen: tuple[Tensor, ...]) -> None:
        self.tokens += tokens
        self.mask += [sampled] * len(tokens)
        self.seen.append(seen)

    def _reply(self) -> str | None:
        try:
            return self.task.reply(self.problem, tuple(self.turns))
        except Exception:  # a program of somebody else's; it is told when the conversation is graded
            return None


def hear(policy: Policy, reply: str, *, after: Sequence[int]) -> list[int]:
    """The tokens that put the environment's reply to the model, `after` being the turn before it."""
    if not policy.prompting.chat:
        return policy.encode(reply)
    ended_by = str(policy.tokenizer.decode([after[-1]])) if after[-1] in policy.end_tokens else ""
    return policy.encode(render_reply(policy.tokenizer, reply, ended_by=ended_by))


def generate_turns(policy: Policy, task: MultiTurn, problems: Sequence[Problem], params: SamplingParams) -> Sampled:
    """As `sample`, for a task of several turns; `max_new_tokens` bounds what the policy writes in all of them.

    The end token of each turn was sampled and is part of the response. What the environment said has mask False and numbers 0.
    """
    rows = [_Conversation(policy, task, problem, params.max_new_tokens) for problem in problems for _ in range(params.group_size)]
    going = rows
    while going:
        try:
            # Rows that may write less are cut to what they have left.
            turn = replace(
                params,
                group_size=1,
                max_new_tokens=max(row.left for row in going),
                seed=derive_seed(params.seed, "turn", len(going[0].turns)),
            )
            drawn = sample(policy, [[*row.prompt, *row.tokens] for row in going], turn)
        except BadNumbersError as bad:
            raise BadNumbersError(bad.stage, str(bad), [rows.index(going[place]) for place in bad.rows]) from None
        going = [row for row, turn in zip(going, _turns(drawn), strict=True) if row.take_turn(turn)]
    device = policy.device
    logp, entropy, *hidden = (
        pad_sequence([torch.cat([turn[kind] for turn in row.seen]) for row in rows], batch_first=True)
        for kind in range(len(rows[0].seen[0]))
    )
    rollouts = Rollouts(
        prompts=tuple(tuple(row.prompt) for row in rows),
        tokens=pad_sequence([torch.tensor(row.tokens, device=device) for row in rows], batch_first=True),
        mask=pad_sequence([torch.tensor(row.mask, device=device) for row in rows], batch_first=True),
        group=torch.arange(len(problems), device=device).repeat_interleave(params.group_size),
        behavior_logp=logp,
        finished=torch.tensor([row.finished for row in rows], device=device),
    )
    return Sampled(rollouts, TokenScores(logp, entropy, hidden[0] if hidden else None))
