"""IBPO's compare-and-correct: the policy sees a failed response and a sibling and writes a revision.

The tokens that a successful revision changed come from a shortest Levenshtein alignment.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.config import IbpoShape
from tokencredit.config.train import TrainConfig
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.generate import ROWS_AT_ONCE
from tokencredit.rollout.grading import response_text
from tokencredit.rollout.sampler import sample
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task, revision_prompt, verdicts
from tokencredit.types import Rollouts


def edit_distance(before: Sequence[int], after: Sequence[int]) -> int:
    """Fewest insertions, deletions and replacements of one token that turn `before` into `after`."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.distance(before, after)


def edited_tokens(before: Sequence[int], after: Sequence[int]) -> list[bool]:
    """True for tokens of `before` that a shortest alignment with `after` replaces or deletes, or before which it inserts.

    An insertion at the end marks the last token (our reading of the paper). Of several shortest alignments one is used; equal
    sequences and an empty `before` mark nothing.
    """
    from rapidfuzz.distance import Levenshtein

    marked = [False] * len(before)
    for edit in Levenshtein.editops(before, after) if marked else ():
        marked[min(edit.src_pos, len(before) - 1)] = True
    return marked


class Comparison(NamedTuple):
    """A failed response, and the sibling shown with it."""

    failed: int
    sibling: int


class Revisions(NamedTuple):
    repaired: Float[Tensor, " seq"]
    """Share of a response's comparisons whose revision is right; 0 where none was made."""
    edited: Bool[Tensor, "seq tok"]
    """Where the successful revision with the fewest edits changed a response; True throughout for all others."""
    tried: int
    succeeded: int
    identical: int
    """Repaired responses whose revision has the same tokens; all their tokens keep their credit."""


def choose_comparisons(score: Tensor, group: Tensor, choice: IbpoShape, *, seed: int) -> list[Comparison]:
    """For every failed response up to `references` graded siblings, correct ones first, without repetition."""
    rng = Random(seed)
    scores, groups = score.tolist(), group.tolist()
    siblings: dict[int, list[int]] = {}
    for row, name in enumerate(groups):
        if scores[row] == scores[row]:
            siblings.setdefault(name, []).append(row)
    chosen: list[Comparison] = []
    for row, name in enumerate(groups):
        # An ungraded response (NaN) compares false, so it is not a failure.
        if not scores[row] <= choice.correct_above:
            continue
        others = [sibling for sibling in siblings[name] if sibling != row]
        rng.shuffle(others)
        if choice.prefer_correct:
            others.sort(key=lambda sibling: scores[sibling] <= choice.correct_above)
        chosen += [Comparison(row, sibling) for sibling in others[: choice.references]]
    return chosen


def _sample_revisions(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    rollouts: Rollouts,
    comparisons: Sequence[Comparison],
    config: TrainConfig,
    seed: int,
) -> list[list[int]]:
    """The tokens of one revision per comparison."""
    groups = rollouts.group.tolist()
    texts = {row: response_text(policy, rollouts, row) for pair in comparisons for row in pair}
    written: list[list[int]] = []
    for start in range(0, len(comparisons), ROWS_AT_ONCE):
        prompts = [
            policy.ask(revision_prompt(task, problems[groups[pair.failed]], texts[pair.failed], texts[pair.sibling]))
            for pair in comparisons[start : start + ROWS_AT_ONCE]
        ]
        params = SamplingParams.from_config(config, seed=derive_seed(seed, "revisions", start), group_size=1)
        drawn = sample(policy, prompts, params).rollouts
        tokens, mask = drawn.tokens.cpu(), drawn.mask.cpu()
        written += [tokens[row][mask[row]].tolist() for row in range(len(prompts))]
    return written


def revise(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    rollouts: Rollouts,
    score: Tensor,
    choice: IbpoShape,
    config: TrainConfig,
    *,
    seed: int,
) -> Revisions:
    """Sample and grade one revision per comparison. Training never uses the revisions themselves."""
    comparisons = choose_comparisons(score, rollouts.group, choice, seed=derive_seed(seed, "references"))
    written = _sample_revisions(policy, task, problems, rollouts, comparisons, config, seed)
    groups = rollouts.group.tolist()
    tried: dict[int, int] = {}
    successes: dict[int, list[list[int]]] = {}
    to_grade = [(problems[groups[pair.failed]], policy.answer(tokens)) for pair, tokens in zip(comparisons, written, strict=True)]
    found = verdicts(task, to_grade)
    for pair, tokens, verdict in zip(comparisons, written, found, strict=True):
        tried[pair.failed] = tried.get(pair.failed, 0) + 1
        if verdict.score > choice.correct_above:
            successes.setdefault(pair.failed, []).append(tokens)
    repaired = torch.zeros(len(groups), dtype=torch.float64, device=score.device)
    edited = torch.ones_like(rollouts.mask)
    identical = 0
    for row, revisions in successes.items():
        repaired[row] = len(revisions) / tried[row]
        before = rollouts.tokens[row][rollouts.mask[row]].tolist()
        closest = min(revisions, key=lambda after: edit_distance(before, after))
        marks = edited_tokens(before, closest)
        if any(marks):
            edited[row, rollouts.mask[row]] = torch.tensor(marks, device=edited.device)
        else:
            identical += 1
    return Revisions(repaired, edited, len(comparisons), sum(len(found) for found in successes.values()), identical)
