"""Sibling value credit without hidden states: places are alike where the last tokens are the same (ours)."""

import torch
from jaxtyping import Int
from torch import Tensor

from tokencredit.credit.base import CreditInputs, CreditOutcome, State
from tokencredit.credit.siblings import After, Likeness, Rows, Siblings, near_places, sibling_credit

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
