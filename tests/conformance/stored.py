"""Rollouts of the embedded base with everything that makes batches awkward (see make_rollouts.py), to be pushed through any engine."""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokencredit.models import model_folder
from tokencredit.policy.policy import Policy, load_policy
from tokencredit.types import Rollouts

FILE = Path(__file__).parent / "rollouts.json"
BASE = "steps-shift"
GROUP_SIZE = 4
LIMIT = 30
"""Longest response, in tokens."""
TOOL_OUTPUT = range(3, 6)
"""Tokens that the policy did not write, in every second response of batches that have any."""


class StoredBatch(NamedTuple):
    """One entry per row; rows of a prompt lie side by side."""

    prompts: tuple[str, ...]
    prompt_ids: tuple[tuple[int, ...], ...]
    response_ids: tuple[tuple[int, ...], ...]
    written: tuple[tuple[bool, ...], ...]
    """Which tokens of the response the policy wrote."""
    sampler_logp: tuple[tuple[float, ...], ...]
    """Of a sampler that differs from the policy; NaN where it could not score a token."""
    score: tuple[float, ...]
    """NaN where it could not be graded."""

    @property
    def finished(self) -> tuple[bool, ...]:
        return tuple(ids[-1] in base_policy().end_tokens for ids in self.response_ids)

    def rollouts(self, *, other_sampler: bool = False) -> Rollouts:
        width = max(len(ids) for ids in self.response_ids)

        def padded(rows: Sequence[Sequence[Any]], value: Any) -> Tensor:
            return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])

        tokens = padded(self.response_ids, 0)
        return Rollouts(
            prompts=self.prompt_ids,
            tokens=tokens,
            mask=padded(self.written, False),
            group=torch.arange(len(tokens)) // GROUP_SIZE,
            behavior_logp=padded(self.sampler_logp, 0.0) if other_sampler else torch.zeros(tokens.shape),
            finished=torch.tensor(self.finished),
        )


def base_folder() -> str:
    return str(model_folder(BASE))


@lru_cache(maxsize=1)
def base_policy() -> Policy:
    """For reading and writing; whoever trains loads another."""
    return load_policy(BASE, device=torch.device("cpu"), dtype="float32")


def _number(stored: float | None) -> float:
    return float("nan") if stored is None else stored


@lru_cache
def stored_batches(*, groups: int = 8, tools: bool = False) -> tuple[StoredBatch, ...]:
    """The first `groups` prompts of every batch."""
    policy, made = base_policy(), []
    for batch in json.loads(FILE.read_text(encoding="utf-8")):
        rows = batch[: groups * GROUP_SIZE]
        responses = [(*policy.encode(row["response"]), *([policy.end_tokens[0]] if row["ended"] else [])) for row in rows]
        written = [[not (tools and row % 2 and place in TOOL_OUTPUT) for place in range(len(ids))] for row, ids in enumerate(responses)]
        made.append(
            StoredBatch(
                prompts=tuple(row["prompt"] for row in rows),
                prompt_ids=tuple(tuple(policy.encode(row["prompt"])) for row in rows),
                response_ids=tuple(responses),
                # A response that ends with tool output would never have been handed back.
                written=tuple((*own[:-1], True) for own in written),
                sampler_logp=tuple(tuple(_number(value) for value in row["sampler_logp"]) for row in rows),
                score=tuple(_number(row["score"]) for row in rows),
            )
        )
    return tuple(made)
