"""Multi-turn sampling: the policy writes, the environment replies; replies are context and are never learned.

In each turn all unfinished conversations are sampled together, with the conversation so far as their prompt. So a scoring pass
over prompt and response sees the same context as the sampler. The policy's turns are the runs of the mask.
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
    """Copy to the host before reading row by row; on a device every row would synchronize."""
    return replace(rollouts, tokens=rollouts.tokens.cpu(), mask=rollouts.mask.cpu(), behavior_logp=rollouts.behavior_logp.cpu())


def turn_tokens(rollouts: Rollouts, row: int) -> list[list[int]]:
    """The tokens of each turn; a response without an environment is one turn."""
    pairs = zip(rollouts.mask[row].tolist(), rollouts.tokens[row].tolist(), strict=True)
    return [[token for _, token in run] for sampled, run in groupby(pairs, key=lambda pair: pair[0]) if sampled]


def turns_of(policy: Policy, rollouts: Rollouts, row: int) -> list[str]:
    """The text of each turn that the environment and the verifier read."""
    return [policy.answer(tokens) for tokens in turn_tokens(rollouts, row)]


class _Turn(NamedTuple):
    tokens: list[int]
    seen: tuple[Tensor, ...]
    """Log-prob, entropy and, where requested, hidden state of each token."""
    ended: bool


def _turns(drawn: Sampled) -> Iterator[_Turn]:
    read, ended = on_cpu(drawn.rollouts), drawn.rollouts.finished.tolist()
    logp, entropy, hidden, _ = drawn.evidence
    seen = [value for value in (logp, entropy, hidden) if value is not None]
    for row, tokens in enumerate(read.tokens):
        yield _Turn(tokens[read.mask[row]].tolist(), tuple(value[row] for value in seen), ended[row])


class _Conversation:
    """One unfinished row: its turns and replies, and the sampler's evidence for the policy's tokens."""

    def __init__(self, policy: Policy, task: MultiTurn, problem: Problem, limit: int) -> None:
        self.policy, self.task, self.problem = policy, task, problem
        self.prompt = policy.ask(problem.prompt)
        self.left = limit
        """Tokens left for the policy to write."""
        self.turns: list[str] = []
        self.tokens: list[int] = []
        self.mask: list[bool] = []
        self.seen: list[tuple[Tensor, ...]] = []
        """The sampler's evidence turn by turn; zeros for replies of the environment."""
        self.finished = False

    def take_turn(self, turn: _Turn) -> bool:
        """Append the policy's turn and the environment's reply; False: the conversation is over."""
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
        reply_ids = encode_reply(self.policy, reply, after=written)
        if not reply_ids:
            raise ConfigError(f"the environment replied {reply!r}, which has no tokens in this model; a reply must separate two turns")
        self._append(reply_ids, False, tuple(value.new_zeros(len(reply_ids), *value.shape[1:]) for value in self.seen[-1]))
        return True

    def _append(self, tokens: list[int], sampled: bool, seen: tuple[Tensor, ...]) -> None:
        self.tokens += tokens
        self.mask += [sampled] * len(tokens)
        self.seen.append(seen)

    def _reply(self) -> str | None:
        try:
            return self.task.reply(self.problem, tuple(self.turns))
        except Exception:  # user code; the same failure is reported when the conversation is graded
            return None


def encode_reply(policy: Policy, reply: str, *, after: Sequence[int]) -> list[int]:
    """The tokens of the environment's reply, which follows the turn `after`."""
    if not policy.prompting.chat:
        return policy.encode(reply)
    ended_by = str(policy.tokenizer.decode([after[-1]])) if after[-1] in policy.end_tokens else ""
    return policy.encode(render_reply(policy.tokenizer, reply, ended_by=ended_by))


def generate_turns(policy: Policy, task: MultiTurn, problems: Sequence[Problem], params: SamplingParams) -> Sampled:
    """As `sample`, for a task of several turns; `max_new_tokens` bounds what the policy writes in all of them.

    The end token of each turn was sampled and is part of the response. Replies of the environment have mask False and numbers 0.
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
            raise BadNumbersError(bad.stage, str(bad), [rows.index(going[index]) for index in bad.rows]) from None
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
