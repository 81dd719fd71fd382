"""Gradient masses of a batch by sign and prompt difficulty, and the separation of the two sides' gradient centroids.

Masses follow FADE (arXiv 2607.01490): m_S = sum_{A_i > 0} A_i / G and m_F = sum_{A_i < 0} |A_i| / G of each group. DelTA's premise is
that its coefficients increase the separation.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.delta.accumulators import CentroidSums
from tokencredit.credit.delta.vectors import TokenVectors
from tokencredit.diagnose.common import count, mean_where, number, percent
from tokencredit.types import Finding, TableRow


class SideContrast(NamedTuple):
    cosine: float
    distance: float
    relative_distance: float
    """||mu+ - mu-|| / (||mu+|| + ||mu-||): 0 for equal centroids, 1 for opposite ones."""


class CentroidContrast(NamedTuple):
    before: SideContrast
    """Tokens weighted by |A|."""
    after: SideContrast | None
    """Tokens weighted by |A| c; None for a method without coefficients."""


def centroid_contrast(
    vectors: TokenVectors, advantage: Float[Tensor, " tok"], coefficient: Float[Tensor, " tok"] | None = None
) -> CentroidContrast:
    """mu+ and mu-, weighted means of the token vectors of each side; coefficients are >= 0. One-sided batches give NaN."""
    before = _side_contrast(vectors, advantage, 1.0)
    return CentroidContrast(before, None if coefficient is None else _side_contrast(vectors, advantage, coefficient))


def _side_contrast(vectors: TokenVectors, advantage: Float[Tensor, " tok"], share: Float[Tensor, " tok"] | float) -> SideContrast:
    positive, negative, one_sided = CentroidSums().add(vectors, advantage, share).finish()
    if one_sided:
        return SideContrast(math.nan, math.nan, math.nan)
    sizes = float(positive.norm()), float(negative.norm())
    distance = float((positive - negative).norm())
    cosine = float((positive * negative).sum()) / (sizes[0] * sizes[1]) if min(sizes) > 0 else math.nan
    return SideContrast(cosine, distance, distance / sum(sizes) if sum(sizes) > 0 else math.nan)


SOLVE_RATE_EDGES = (0.0, 0.25, 0.5, 0.75)
"""Borders of the prompt-difficulty buckets; a border belongs to the bucket below it. Fully solved prompts have their own bucket."""
SOLVE_RATES = ("0", "(0, 0.25]", "(0.25, 0.5]", "(0.5, 0.75]", "(0.75, 1)", "1")


class GroupMasses(NamedTuple):
    """One entry per group, over its graded responses."""

    graded: Float[Tensor, " grp"]
    solve_rate: Float[Tensor, " grp"]
    """NaN for a group without a graded response, as both masses."""
    dead: Bool[Tensor, " grp"]
    """A dead group: no advantage, and all graded scores equal or fewer than two."""
    success: Float[Tensor, " grp"]
    failure: Float[Tensor, " grp"]
    token_positive: Float[Tensor, " grp"]
    """Sum of |credit| over tokens of positive credit."""
    token_negative: Float[Tensor, " grp"]


def group_masses(
    advantage: Float[Tensor, " seq"],
    score: Float[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    credit: Float[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
) -> GroupMasses:
    """Masses of each group, in float64; ungraded responses (NaN) are in no sum and no count."""
    index = group.unique(return_inverse=True)[1]
    groups, known = int(index.max()) + 1 if len(index) else 0, ~score.isnan()

    def summed(value: Tensor) -> Float[Tensor, " grp"]:
        zeros = torch.zeros(groups, dtype=torch.float64, device=score.device)
        return zeros.index_add_(0, index[known], value[known].double())

    def extreme(kind: str) -> Float[Tensor, " grp"]:
        nothing = torch.zeros(groups, dtype=score.dtype, device=score.device)
        return nothing.scatter_reduce(0, index[known], score[known], kind, include_self=False)

    graded, credit = summed(known), credit.double().where(mask, 0.0)
    taught = summed(advantage != 0) > 0
    return GroupMasses(
        graded=graded,
        solve_rate=summed(score >= 1) / graded,
        dead=(extreme("amax") == extreme("amin")) & ~taught,
        success=summed(advantage.clamp(min=0)) / graded,
        failure=summed((-advantage).clamp(min=0)) / graded,
        token_positive=summed(credit.clamp(min=0).sum(-1)),
        token_negative=summed((-credit).clamp(min=0).sum(-1)),
    )


def effective_groups(weight: Float[Tensor, " grp"]) -> float:
    """(sum w)^2 / sum w^2: the effective number of groups; NaN where all weights are 0."""
    squares = float(weight.double().square().sum())
    return float(weight.double().sum()) ** 2 / squares if squares > 0 else math.nan


def masses(
    advantage: Float[Tensor, " seq"],
    score: Float[Tensor, " seq"],
    group: Int[Tensor, " seq"],
    credit: Float[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    contrast: CentroidContrast | None = None,
) -> Finding:
    """Response and token masses of both signs by prompt difficulty, dead and effective groups, and the sides' centroids if given.

    A success is a score of 1 or more. Token masses go by the sign of the credit itself. m_S and m_F are means over groups.
    """
    found = GroupMasses(*(value.cpu() for value in group_masses(advantage, score, group, credit, mask)))
    comparable = found.graded > 0
    token_mass = float((found.token_positive + found.token_negative).sum())
    spread = effective_groups((found.success + found.failure)[comparable] * found.graded[comparable])
    success, failure = mean_where(found.success, comparable), mean_where(found.failure, comparable)
    ungraded = int(score.isnan().sum())
    numbers = {
        "success_mass": success,
        "failure_mass": failure,
        "success_share": success / (success + failure) if success + failure > 0 else math.nan,
        "token_positive": float(found.token_positive.sum()),
        "token_negative": float(found.token_negative.sum()),
        "token_positive_share": float(found.token_positive.sum()) / token_mass if token_mass > 0 else math.nan,
        "groups": float(len(found.dead)),
        "dead_groups": mean_where(found.dead, torch.ones_like(found.dead)),
        "effective_groups": spread,
        "responses": float(len(score)),
        "ungraded": float(ungraded),
        **_contrast_numbers(contrast),
    }
    return Finding(name="masses", note=_note(numbers, ungraded), numbers=numbers, tables={"by_solve_rate": _by_solve_rate(found)})


def _by_solve_rate(found: GroupMasses) -> tuple[TableRow, ...]:
    """Groups without a graded response are in no bucket."""
    bucket = torch.bucketize(found.solve_rate, found.solve_rate.new_tensor(SOLVE_RATE_EDGES)) + (found.solve_rate == 1).long()
    bucket = bucket.where(found.graded > 0, -1)
    total = float((found.token_positive + found.token_negative).sum())
    rows: list[TableRow] = []
    for place, name in enumerate(SOLVE_RATES):
        here = bucket == place
        positive, negative = float(found.token_positive[here].sum()), float(found.token_negative[here].sum())
        rows.append(
            {
                "solve_rate": name,
                "groups": int(here.sum()),
                "success_mass": mean_where(found.success, here),
                "failure_mass": mean_where(found.failure, here),
                "token_positive": positive,
                "token_negative": negative,
                "token_share": (positive + negative) / total if total > 0 else math.nan,
            }
        )
    return tuple(rows)


def _contrast_numbers(contrast: CentroidContrast | None) -> dict[str, float]:
    if contrast is None:
        return {}
    times = {"before": contrast.before} | ({} if contrast.after is None else {"after": contrast.after})
    return {f"centroids/{name}/{time}": value for time, sides in times.items() for name, value in sides._asdict().items()}


def _note(numbers: Mapping[str, float], ungraded: int) -> str:
    words = [
        f"A group pushes up with mass {number(numbers['success_mass'])} and down with {number(numbers['failure_mass'])} on average; "
        f"of the credit on tokens {percent(numbers['token_positive_share'])} pushes up.",
        f"{percent(numbers['dead_groups'])} of {count(int(numbers['groups']), 'group')} offer nothing to compare; the advantages "
        f"spread over as many groups as {number(numbers['effective_groups'])} equal ones would.",
    ]
    if "centroids/cosine/before" in numbers:
        words.append(f"Cosine of the two sides' centroids, weighted by advantage: {number(numbers['centroids/cosine/before'])}.")
    if "centroids/cosine/after" in numbers:
        words.append(f"With the method's coefficients: {number(numbers['centroids/cosine/after'])}.")
    if ungraded:
        words.append(f"{count(ungraded, 'response')} could not be graded and {'is' if ungraded == 1 else 'are'} left out.")
    return " ".join(words)
