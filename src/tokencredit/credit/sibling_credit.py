"""The two sibling credits (ours): `sibling_value_credit` compares positions by hidden states, `sibling_context_credit` by last tokens."""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.credit.base import CreditInputs, CreditOutcome, State
from tokencredit.credit.delta.algorithm import Reduce, this_rank_only
from tokencredit.credit.delta.vectors import valid_features
from tokencredit.credit.siblings import After, SharedResponses, Siblings, Similarity, position_similarity, sibling_credit
from tokencredit.kernels import at_least_float32

Metric = Literal["euclid", "cosine"]

MEDIAN_SAMPLE = 512
"""Positions, evenly spread over a group, from which the median distance is computed."""


def hidden_similarity(
    siblings: Siblings, hidden: Float[Tensor, "tok hid"], *, metric: Metric, width: float, position_width: float | None
) -> Similarity:
    """exp(-|h - h'|^2 / (2 (width x median)^2)), the median over pairs of positions of different responses.

    With `position_width` it is multiplied by `position_similarity`.
    """
    states = at_least_float32(hidden[siblings.packed_index.flatten()])
    if metric == "cosine":
        states = torch.nn.functional.normalize(states, dim=-1)
    squared = states.square().sum(-1)

    def distance(query: Tensor | slice, others: Tensor | slice) -> Tensor:
        return (squared[query, None] + squared[others] - 2 * states[query] @ states[others].T).clamp(min=0)

    seq, tok = siblings.packed_index.shape
    some = siblings.present.flatten().nonzero()[:, 0]
    some = some[torch.linspace(0, len(some) - 1, min(MEDIAN_SAMPLE, len(some)), device=some.device).long()]
    row = some // tok
    median = distance(some, some)[row[:, None] != row].median()
    scale = (2 * width**2 * median).clamp(min=torch.finfo(states.dtype).tiny)

    def similarity(run: slice) -> Tensor:
        similar = (-distance(run, slice(None)) / scale).exp().view(-1, seq, tok)
        return similar * position_similarity(siblings, run, position_width)

    return similarity


def sibling_value_credit(
    inputs: CreditInputs,
    state: State,
    *,
    after: After = "token",
    metric: Metric = "euclid",
    width: float = 0.25,
    position_width: float | None = None,
    shrinkage: float = 1.0,
    normalize: bool = True,
    reduce: Reduce = this_rank_only,
) -> CreditOutcome:
    """a_it = (1 - l) A_i + l (V after t - V before t), V the siblings' mean advantage at positions with similar hidden states.

    l is `trust` of `token_gains`. A hidden state keeps only what predicts the next token, so `after` "next" misses part of what a
    token changed. With several ranks, every rank receives the hidden states of all.
    """
    if inputs.hidden is None:
        raise ValueError("hidden is missing; sibling value credit needs the LM head's input from the scoring pass")
    if metric not in get_args(Metric):
        raise ValueError(f"metric is {metric!r}; it must be one of {', '.join(get_args(Metric))}")

    def similarity(siblings: Siblings, responses: SharedResponses) -> Similarity:
        return hidden_similarity(siblings, responses.joined("hidden"), metric=metric, width=width, position_width=position_width)

    evidence = {"hidden": valid_features(inputs.hidden, inputs.mask)}
    return sibling_credit(inputs, state, similarity, evidence, after=after, shrinkage=shrinkage, normalize=normalize, reduce=reduce)


PROMPT = -1
"""Placeholder for every token before the response; all siblings share the prompt."""


def last_tokens(tokens: Int[Tensor, "seq tok"], ngram: int) -> Int[Tensor, "seq tok ngram"]:
    """The `ngram` tokens before each position, the nearest first."""
    before = torch.nn.functional.pad(tokens, (ngram, 0), value=PROMPT)
    return before.unfold(1, ngram, 1)[:, : tokens.shape[1]].flip(-1)


def context_similarity(
    siblings: Siblings, context: Int[Tensor, "tok ngram"], *, backoff: float, position_width: float | None
) -> Similarity:
    """backoff^(ngram - m), m the number of equal tokens counted back from the position without a gap; 0 where m = 0."""
    last = context[siblings.packed_index.flatten()]
    ngram = last.shape[1]
    weight = torch.tensor([backoff ** (ngram - matched) if matched else 0.0 for matched in range(ngram + 1)], device=last.device)

    def similarity(run: slice) -> Tensor:
        same = torch.ones(run.stop - run.start, len(last), dtype=torch.bool, device=last.device)
        matched = torch.zeros_like(same, dtype=torch.long)
        for back in range(ngram):
            same &= last[run, None, back] == last[:, back]
            matched += same
        return weight.double()[matched].view(-1, *siblings.packed_index.shape) * position_similarity(siblings, run, position_width)

    return similarity


def sibling_context_credit(
    inputs: CreditInputs,
    state: State,
    *,
    after: After = "token",
    ngram: int = 3,
    backoff: float = 0.25,
    position_width: float | None = None,
    shrinkage: float = 1.0,
    normalize: bool = True,
) -> CreditOutcome:
    """a_it = (1 - l) A_i + l (V after t - V before t), V the siblings' mean advantage after the same last tokens.

    l is `trust` of `token_gains`. Tokens outside the mask (an environment's) are part of the context but not positions.
    """
    if ngram < 1:
        raise ValueError(f"ngram is {ngram}; at least one token must be compared")

    def similarity(siblings: Siblings, responses: SharedResponses) -> Similarity:
        return context_similarity(siblings, responses.joined("context"), backoff=backoff, position_width=position_width)

    evidence = {"context": last_tokens(inputs.tokens, ngram)[inputs.mask]}
    return sibling_credit(inputs, state, similarity, evidence, after=after, shrinkage=shrinkage, normalize=normalize)
