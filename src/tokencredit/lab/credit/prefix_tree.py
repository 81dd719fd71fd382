"""Monte Carlo value of every prefix of responses, level by level, with each continuation reused where it is valid.

A continuation whose next token is the response's is also a continuation of the longer prefix, from the same policy. So a prefix inherits
these, and only the missing ones are sampled; siblings share the nodes of their common prefixes.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, variance
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CERTAIN = 0.99
"""A token at least this probable moves the value by at most 1 - p; it is not measured, and the value carries over."""


class Tail(NamedTuple):
    """The rest of a response, and the verifier's score of the whole."""

    tokens: tuple[int, ...]
    score: float


class Request(NamedTuple):
    group: int
    prefix: tuple[int, ...]
    lacking: int
    """Continuations wanted; the sampler may return more."""


Draw = Callable[[Sequence[Request]], list[list[Tail]]]


class TokenAdvantage(NamedTuple):
    value: float
    variance: float


class Truth(NamedTuple):
    """Per response token; NaN outside responses and where unknown."""

    advantage: Float[Tensor, "seq tok"]
    variance: Float[Tensor, "seq tok"]
    """Variance of the estimate of `advantage`."""
    value_after: Float[Tensor, "seq tok"]
    value_error: Float[Tensor, "seq tok"]
    """Standard error of `value_after`."""
    prompt_value: Float[Tensor, " grp"]
    prefixes: int
    """Distinct prefixes with a value."""
    continuations: int
    """Total number of sampled continuations."""


def token_advantage(probability: float, after: Sequence[float], others: Sequence[float], *, spread: float) -> TokenAdvantage:
    """A* = (1 - p) (V after the token - V after any other), with the variance of this estimate.

    The same as V after - V before, since V before = p V(after) + (1 - p) V(any other), but p is known and need not be estimated:
    what is noisy is weighed by 1 - p. `others` are scores of continuations that took another token. One of them alone has the
    variance of all scores together; with none A* is taken as 0, uncertain by half the `spread` of scores times 1 - p.
    """
    weight = 1 - probability
    if not others or not after:
        return TokenAdvantage(0.0, (weight * spread / 2) ** 2)
    noise = 0.0 if len(after) == 1 else variance(after) / len(after)
    other = variance(others) if len(others) > 1 else variance([*after, *others])
    return TokenAdvantage(weight * (fmean(after) - fmean(others)), weight**2 * (noise + other / len(others)))


class _Node:
    def __init__(self, group: int, prefix: tuple[int, ...], rows: list[int], pool: list[Tail]) -> None:
        self.group, self.prefix, self.rows, self.pool = group, prefix, rows, pool
        self.value, self.error = _mean_and_error([tail.score for tail in pool])

    def children(self, tokens: list[list[int]]) -> dict[int, list[int]]:
        """Next token -> rows that took it."""
        depth, found = len(self.prefix), {}
        for row in self.rows:
            if len(tokens[row]) > depth:
                found.setdefault(tokens[row][depth], []).append(row)
        return found


def _mean_and_error(scores: Sequence[float]) -> tuple[float, float]:
    if not scores:
        return math.nan, math.nan
    return fmean(scores), math.sqrt(variance(scores) / len(scores)) if len(scores) > 1 else math.nan


def measure_truth(
    tokens: Int[Tensor, "seq tok"],
    mask: Bool[Tensor, "seq tok"],
    group: Int[Tensor, " seq"],
    logp: Float[Tensor, "seq tok"],
    score: Float[Tensor, " seq"],
    draw: Draw,
    *,
    continuations: int,
    certain: float = CERTAIN,
    notify: Callable[[int, int], None] = lambda done, total: None,
) -> Truth:
    """Responses are written in one piece, without holes; a response whose score is NaN has an unknown last token."""
    lengths = mask.sum(1).tolist()
    written = [row[:length] for row, length in zip(tokens.tolist(), lengths, strict=True)]
    advantage, noise, value_after, value_error = (torch.full(mask.shape, torch.nan, dtype=torch.float64) for _ in range(4))
    truth = Truth(advantage, noise, value_after, value_error, torch.empty(0), 0, 0)
    graded = score[~score.isnan()]
    spread = max(1.0, float(graded.max() - graded.min())) if len(graded) else 1.0
    groups = group.tolist()
    numbers = sorted(set(groups))
    sampled = draw([Request(number, (), continuations) for number in numbers])
    used, valued = sum(map(len, sampled)), len(numbers)
    level = [
        _Node(number, (), [row for row, one in enumerate(groups) if one == number], pool)
        for number, pool in zip(numbers, sampled, strict=True)
    ]
    prompt_value = torch.tensor([node.value for node in level], dtype=torch.float64)
    done, whole = 0, sum(lengths)

    def chance(node: _Node, rows: list[int]) -> float:
        return math.exp(float(logp[rows[0], len(node.prefix)]))

    def top_up(lacking: list[tuple[list[Tail], Request]]) -> int:
        fresh = draw([request for _, request in lacking]) if lacking else []
        for (pool, _), more in zip(lacking, fresh, strict=True):
            pool.extend(more)
        return sum(map(len, fresh))

    while level:
        # Nearly certain tokens pass on fewer continuations; before a branching token the node needs enough again.
        used += top_up(
            [
                (node.pool, Request(node.group, node.prefix, continuations - len(node.pool)))
                for node in level
                if len(node.pool) < continuations and any(chance(node, rows) < certain for rows in node.children(written).values())
            ]
        )
        grown = [
            _Grown(node, token, rows, chance(node, rows), len(written[rows[0]]) == len(node.prefix) + 1)
            for node in level
            for token, rows in node.children(written).items()
        ]
        used += top_up(
            [
                (one.inherited, Request(one.node.group, one.prefix, continuations - len(one.inherited)))
                for one in grown
                if not one.ends and one.probability < certain and len(one.inherited) < continuations
            ]
        )
        valued += sum(not one.ends and one.probability < certain for one in grown)
        for one in grown:
            done += len(one.rows)
            _write(truth, one, score, certain, spread)
        level = [one.node_after for one in grown if not one.ends]
        notify(done, whole)
    return truth._replace(prompt_value=prompt_value, prefixes=valued, continuations=used)


class _Grown:
    """The next token of a node, with the statistics from the node's continuations."""

    def __init__(self, node: _Node, token: int, rows: list[int], probability: float, ends: bool) -> None:
        self.node, self.rows, self.ends = node, rows, ends
        self.probability = min(1.0, probability)
        self.prefix = (*node.prefix, token)
        took = [tail for tail in node.pool if tail.tokens and tail.tokens[0] == token]
        self.inherited = [] if ends else [Tail(tail.tokens[1:], tail.score) for tail in took]
        self.others = [tail.score for tail in node.pool if not tail.tokens or tail.tokens[0] != token]

    @property
    def node_after(self) -> _Node:
        return _Node(self.node.group, self.prefix, self.rows, self.inherited)


def _write(truth: Truth, one: _Grown, score: Tensor, certain: float, spread: float) -> None:
    """Write A* of one token. The value of a finished response is its score; a nearly certain token keeps the value before it."""
    place = len(one.prefix) - 1
    if one.ends:
        value, error = float(score[one.rows[0]]), 0.0
        after = [] if math.isnan(value) else [value]
    elif one.probability < certain:
        after = [tail.score for tail in one.inherited]
        value, error = _mean_and_error(after)
    else:
        after, value, error = [], one.node.value, one.node.error
    if one.ends and not after:
        found = TokenAdvantage(math.nan, math.nan)
    elif one.probability >= certain:
        found = TokenAdvantage(0.0, 0.0)
    else:
        found = token_advantage(one.probability, after, one.others, spread=spread)
    for row in one.rows:
        truth.advantage[row, place], truth.variance[row, place] = found
        truth.value_after[row, place], truth.value_error[row, place] = value, error
