"""Sibling value credit: places are alike where the policy's hidden states are (ours).

Sibling value credit without hidden states: places are alike where the last tokens are the same (ours).
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.credit.base import CreditInputs, CreditOutcome, State
from tokencredit.credit.delta.algorithm import Reduce, this_rank_only
from tokencredit.credit.delta.vectors import valid_features
from tokencredit.credit.siblings import After, Likeness, Rows, Siblings, near_places, sibling_credit
from tokencredit.kernels import at_least_float32

Metric = Literal["euclid", "cosine"]

SOME = 512
"""Places among which the median distance is taken, evenly spread over a group."""


def hidden_likeness(
    siblings: Siblings, hidden: Float[Tensor, "tok hid"], *, metric: Metric, width: float, position_width: float | None
) -> Likeness:
    """exp(-|h - h'|^2 / (2 (width x median)^2)), the median over pairs of places of different responses; times nearness where asked for."""
    states = at_least_float32(hidden[siblings.place.flatten()])
    if metric == "cosine":
        states = torch.nn.functional.normalize(states, dim=-1)
    squared = states.square().sum(-1)

    def distance(asked: Tensor | slice, others: Tensor | slice) -> Tensor:
        return (squared[asked, None] + squared[others] - 2 * states[asked] @ states[others].T).clamp(min=0)

    seq, tok = siblings.place.shape
    some = siblings.present.flatten().nonzero()[:, 0]
    some = some[torch.linspace(0, len(some) - 1, min(SOME, len(some)), device=some.device).long()]
    row = some // tok
    median = distance(some, some)[row[:, None] != row].median()
    scale = (2 * width**2 * median).clamp(min=torch.finfo(states.dtype).tiny)

    def likeness(run: slice) -> Tensor:
        alike = (-distance(run, slice(None)) / scale).exp().view(-1, seq, tok)
        return alike * near_places(siblings, run, position_width)

    return likeness


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
    """a_it = (1 - l) A_i + l (V after t - V before t), V by the siblings' advantages at places with like hidden states; see `siblings`.

    The state that predicts a token forgets what it need not predict, so `after` "next" misses what the token changed.

    Where rows lie on several ranks, every rank is told the hidden states of all.
    """
    if inputs.hidden is None:
        raise ValueError("hidden is missing; sibling value credit needs the LM head's input from the scoring pass")
    if metric not in get_args(Metric):
        raise ValueError(f"metric is {metric!r}; it must be one of {', '.join(get_args(Metric))}")

    def likeness(siblings: Siblings, rows: Rows) -> Likeness:
        return hidden_likeness(siblings, rows.joined("hidden"), metric=metric, width=width, position_width=position_width)

    evidence = {"hidden": valid_features(inputs.hidden, inputs.mask)}
    return sibling_credit(inputs, state, likeness, evidence, after=after, shrinkage=shrinkage, normalize=normalize, reduce=reduce)


PROMPT = -1
"""Stands for every token before the response, the same for all siblings."""


def last_tokens(tokens: Int[Tensor, "seq tok"], ngram: int) -> Int[Tensor, "seq tok ngram"]:
    """The tokens before each place, the nearest first."""
    before = torch.nn.functional.pad(tokens, (ngram, 0), value=PROMPT)
    return before.unfold(1, ngram, 1)[:, : tokens.shape[1]].flip(-1)


def context_likeness(siblings: Siblings, context: Int[Tensor, "tok ngram"], *, backoff: float, position_width: float | None) -> Likeness:
    """backoff^(ngram - m), m the nearest tokens that are the same without a gap; 0 where not even the last one is."""
    last = context[siblings.place.flatten()]
    ngram = last.shape[1]
    weight = torch.tensor([backoff ** (ngram - matched) if matched else 0.0 for matched in range(ngram + 1)], device=last.device)

    def likeness(run: slice) -> Tensor:
        same = torch.ones(run.stop - run.start, len(last), dtype=torch.bool, device=last.device)
        matched = torch.zeros_like(same, dtype=torch.long)
        for back in range(ngram):
            same &= last[run, None, back] == last[:, back]
            matched += same
        return weight.double()[matched].view(-1, *siblings.place.shape) * near_places(siblings, run, position_width)

    return likeness


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
    """a_it = (1 - l) A_i + l (V after t - V before t), V by the siblings' advantages at places after the same last tokens; see `siblings`.

    Tokens that the policy did not write (an environment's) are part of the context, and are no places.
    """
    if ngram < 1:
        raise ValueError(f"ngram is {ngram}; at least one token must be compared")

    def likeness(siblings: Siblings, rows: Rows) -> Likeness:
        return context_likeness(siblings, rows.joined("context"), backoff=backoff, position_width=position_width)

    evidence = {"context": last_tokens(inputs.tokens, ngram)[inputs.mask]}
    return sibling_credit(inputs, state, likeness, evidence, after=after, shrinkage=shrinkage, normalize=normalize)
