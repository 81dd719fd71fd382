"""A made-up environment for the tiny policy, and a twin of the sampler that writes conversations token by token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from tiny import tiny_policy
from tokencredit.policy.policy import Policy
from tokencredit.tasks import Problem, Split

PROBLEMS = [Problem(prompt=prompt, answer=answer) for prompt, answer in (("1+2=", "3"), ("45", "9"), ("7", "0"), ("6-6-6=", "4"))]


@dataclass(frozen=True)
class Counting:
    """Says how long the last turn was, in one to three tokens; over once a turn is even longer than `enough`."""

    turns: int = 4
    enough: int = 6

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
        return PROBLEMS[:count]

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        length = len(turns[-1])
        return None if length > self.enough else ">?:"[: 1 + length % 3]

    def grade_turns(self, problem: Problem, turns: Sequence[str]) -> float:
        return float(len(turns) % 2)

    def grade(self, problem: Problem, response: str) -> float:
        return self.grade_turns(problem, [response])

    def token_class(self, problem: Problem, response: str) -> list[str]:
        return [f"place {place}" for place in range(len(response))]


def talkative_policy(dtype: torch.dtype = torch.float64) -> Policy:
    """Ends its turns soon: by the end token, or by one of many stop strings."""
    return replace(tiny_policy(dtype), stops=("1", "4", "#", "=", "b"))


class Written(NamedTuple):
    tokens: list[int]
    mask: list[bool]
    finished: bool


def written_by_hand(policy: Policy, task: Counting, problem: Problem, limit: int) -> Written:
    """The likeliest conversation: one forward pass over everything for every token, nothing kept."""
    tokens: list[int] = []
    mask: list[bool] = []
    turns: list[str] = []
    turn: list[int] = []
    while sum(mask) < limit:
        with torch.no_grad():
            token = int(policy.model(input_ids=torch.tensor([[*policy.encode(problem.prompt), *tokens]])).logits[0, -1].argmax())
        tokens.append(token)
        mask.append(True)
        turn.append(token)
        stopped = any(stop in policy.tokenizer.decode(turn) for stop in policy.stops)
        if token not in policy.end_tokens and not stopped:
            continue
        turns.append(policy.decode(turn))
        reply = None if len(turns) == task.turns else task.reply(problem, turns)
        if reply is None:
            return Written(tokens, mask, True)
        if sum(mask) < limit:
            tokens += policy.encode(reply)
            mask += [False] * len(reply)
            turn = []
    return Written(tokens, mask, False)
