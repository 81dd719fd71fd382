"""Rollouts in memory -> rows of a rollout file."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from tokencredit.types import Rollouts


def rollout_rows(
    rollouts: Rollouts,
    score: Float[Tensor, " seq"],
    *,
    reward: Float[Tensor, " seq"] | None = None,
    advantage: Float[Tensor, " seq"] | None = None,
    token_class: Sequence[Sequence[str]] | None = None,
    prompts: Sequence[str | None] | None = None,
    responses: Sequence[str | None] | None = None,
    answers: Sequence[str | None] | None = None,
    step: int | None = None,
) -> list[dict[str, Any]]:
    """One row per response, ids up to the last sampled token; `token_class` holds a word per sampled token.

    What the sampler could not score, and what it did not sample, has log-prob null.
    """
    rows: list[dict[str, Any]] = []
    for index, prompt in enumerate(rollouts.prompts):
        inside = rollouts.mask[index].tolist()
        length = max((place + 1 for place, sampled in enumerate(inside) if sampled), default=0)
        if length == 0:
            raise ValueError(f"response {index} has no sampled token; a rollout file holds none such, leave it out")
        inside = inside[:length]
        logp = zip(rollouts.behavior_logp[index, :length].tolist(), inside, strict=True)
        row: dict[str, Any] = {
            "group": int(rollouts.group[index]),
            "prompt_ids": list(prompt),
            "response_ids": rollouts.tokens[index, :length].tolist(),
            "mask": inside,
            "logp": [value if sampled and value == value else None for value, sampled in logp],
            "finished": bool(rollouts.finished[index]),
            "score": float(score[index]),
        }
        for column, values in (("reward", reward), ("advantage", advantage)):
            row |= {} if values is None else {column: float(values[index])}
        for column, texts in (("prompt", prompts), ("response", responses), ("answer", answers)):
            row |= {} if texts is None else {column: texts[index]}
        if token_class is not None:
            names = iter(token_class[index])
            row["token_class"] = [next(names) if sampled else "" for sampled in inside]
        rows.append(row if step is None else {"step": step, **row})
    return rows
