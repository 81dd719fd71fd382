"""A scored batch with everything a scoring pass knows of it, and the ways its rows may lie on ranks."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokencredit.config.resolve import read_recipe
from tokencredit.forward.padded import response_extent
from tokencredit.pipeline import credit
from tokencredit.pipeline.credit import BatchEvidence, CreditPipeline, MethodState, ModelFacts, OwnRows
from tokencredit.pipeline.distributed import SINGLE_PROCESS, ProcessGroup
from tokencredit.types import Credited, Rollouts, Scored, TokenScores

VOCAB, HIDDEN, WIDTH, TEMPERATURE = 6, 3, 7, 0.7
NAN = float("nan")

GROUP = (9, 9, 9, 9, 4, 4, 4, -2, -2, -2, 7, 7, 30, 30)
SCORE = (1.0, 0.0, 0.0, 1.0, 0.0, NAN, 1.0, 1.0, 1.0, 1.0, NAN, NAN, 0.25, 1.0)
"""Group -2 is dead, and group 7 could not be graded."""
LENGTH = (3, 5, 2, 4, 7, 3, 5, 2, 1, 3, 6, 2, 0, 4)
EVERY = range(len(GROUP))

SPLITS: dict[str, tuple[tuple[int, ...], ...]] = {
    "groups straddle": (tuple(range(6)), tuple(range(6, 14))),
    "one row alone": ((0,), tuple(range(1, 14))),
    "in turns": (tuple(range(0, 14, 2)), tuple(range(1, 14, 2))),
    "a rank of dead rows": (tuple(row for row in EVERY if GROUP[row] != -2), (7, 8, 9)),
    "a rank of ungraded rows": ((5, 10, 11), tuple(row for row in EVERY if row not in (5, 10, 11))),
    "a rank of one side": (tuple(row for row in EVERY if SCORE[row] == 1.0), tuple(row for row in EVERY if SCORE[row] != 1.0)),
    "a rank without tokens": ((12,), tuple(row for row in EVERY if row != 12)),
    "a rank without rows": (tuple(EVERY), ()),
    "three ranks, rows in any order": ((10, 0, 5), (13, 2, 1, 3, 4, 6), (9, 8, 7, 12, 11)),
}
"""Rows of each rank."""


class CreditedBatch(NamedTuple):
    credited: Credited
    state: MethodState


class Case(NamedTuple):
    scored: Scored
    evidence: TokenScores
    """With the hidden states of every row."""
    head: Tensor


def made_up_case(seed: int = 0, dtype: torch.dtype = torch.float64) -> Case:
    """Uneven lengths, tool output inside a response, tokens that the sampler could not score; another seed gives other scores too."""
    draw = torch.Generator().manual_seed(seed)
    rows = len(GROUP)
    mask = torch.arange(WIDTH) < torch.tensor(LENGTH)[:, None]
    mask[4, 2] = mask[6, 0] = False
    hidden = torch.randn(rows, WIDTH, HIDDEN, generator=draw, dtype=torch.float64).to(dtype)
    head = torch.randn(VOCAB, HIDDEN, generator=draw, dtype=torch.float64).to(dtype)
    tokens = torch.randint(VOCAB, (rows, WIDTH), generator=draw)
    distribution = (hidden @ head.T / TEMPERATURE).log_softmax(-1)
    logp = distribution.gather(-1, tokens[..., None]).squeeze(-1).where(mask, 0.0)
    entropy = -(distribution.exp() * distribution).sum(-1).where(mask, 0.0)
    behavior = logp.clone()
    behavior[1, 3] = behavior[10, 0] = NAN
    rollouts = Rollouts(
        prompts=tuple((name + 5,) for name in GROUP),
        tokens=tokens,
        mask=mask,
        group=torch.tensor(GROUP),
        behavior_logp=behavior,
        finished=torch.ones(rows, dtype=torch.bool),
    )
    score = torch.tensor(SCORE, dtype=dtype) * (1.0 if seed == 0 else torch.rand(rows, generator=draw, dtype=torch.float64).to(dtype))
    score = score.where(rollouts.group != -2, 1.0)
    return Case(Scored(rollouts=rollouts, score=score, reward=score), TokenScores(logp, entropy, hidden), head)


def crediting_of(recipe: Any, code: SimpleNamespace | Any = credit) -> CreditPipeline:
    return code.CreditPipeline(read_recipe(recipe), max_new_tokens=WIDTH, temperature=TEMPERATURE)


def credit_case(
    made: CreditPipeline,
    case: Case,
    state: MethodState,
    rows: tuple[int, ...] | None = None,
    ranks: ProcessGroup = SINGLE_PROCESS,
    seed: int = 11,
) -> CreditedBatch:
    """One batch on one rank; with `rows` it has the hidden states of those alone, as wide as they need."""
    evidence, own = case.evidence, None
    assert evidence.hidden is not None
    if rows is not None:
        own = OwnRows(torch.tensor(rows, dtype=torch.long), ranks)
        width = max([1, *response_extent(case.scored.rollouts.mask[own.rows]).tolist()])
        evidence = evidence._replace(hidden=evidence.hidden[own.rows, :width])
    if not made.keeps_hidden:
        evidence = evidence._replace(hidden=None)
    known = BatchEvidence(evidence, model=ModelFacts(case.head, (0,)))
    found = made.credit_tokens(case.scored, known, state, seed=seed, own=own)
    return CreditedBatch(made.as_credited(found, known), found.state)
