"""Token tables for what an update did: random ones, and a linear-softmax policy whose first-order effects are known on paper."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tokencredit.diagnose.table import TokenTable

CLASSES = ("copy", "result", "separator")
TEXTS = ("a", "b", "c", "d", "e", "f")


def make_table(
    *,
    row: Sequence[int],
    group: Sequence[int],
    token: Sequence[int],
    probability: Sequence[float],
    advantage: Sequence[float],
    score: Sequence[float],
    token_class: Sequence[str] | None = None,
    optimizer_step: Sequence[int] | None = None,
) -> TokenTable:
    """One entry per token in each; positions count up within a row."""
    logp = torch.tensor(probability, dtype=torch.float64).log()
    return TokenTable(
        row=torch.tensor(row),
        group=torch.tensor(group),
        position=torch.tensor([list(row[:place]).count(one) for place, one in enumerate(row)]),
        token=torch.tensor(token),
        text=tuple(TEXTS[one] for one in token),
        token_class=tuple(token_class or ["copy"] * len(row)),
        logp=logp,
        entropy=torch.zeros_like(logp),
        credit=torch.tensor(advantage, dtype=torch.float64),
        advantage=torch.tensor(advantage, dtype=torch.float64),
        score=torch.tensor(score, dtype=torch.float64),
        optimizer_step=torch.tensor(optimizer_step or [0] * len(row)),
    )


def random_table(seed: int, *, rows: int = 14, ungraded: float = 0.1) -> TokenTable:
    """Groups of unequal size; responses of 1 to 6 tokens, some written twice; some in no step, some A = 0."""
    draw = torch.Generator().manual_seed(seed)

    def uniform() -> float:
        return float(torch.rand((), generator=draw, dtype=torch.float64))

    columns: dict[str, list] = {name: [] for name in ("row", "group", "token", "probability", "advantage", "score", "class", "step")}
    tokens, group, score = [0], 0, 0.0
    for row in range(rows):
        if not row or uniform() < 0.8:
            tokens = [int(uniform() * len(TEXTS)) for _ in range(1 + int(uniform() * 6))]
            group = int(uniform() * 4) * 5 - 3
            score = math.nan if uniform() < ungraded else float(uniform() < 0.5) + 0.5 * float(uniform() < 0.1)
        advantage = 0.0 if uniform() < 0.15 else uniform() - 0.5
        step = int(uniform() * 4) - 1
        for token in tokens:
            probability = uniform() if uniform() < 0.5 else 1 - 0.1 * uniform() ** 3
            entry = (row, group, token, probability, advantage, score, CLASSES[int(uniform() * 3)], step)
            for column, value in zip(columns.values(), entry, strict=True):
                column.append(value)
    token_class, optimizer_step = columns.pop("class"), columns.pop("step")
    return make_table(**columns, token_class=token_class, optimizer_step=optimizer_step)


def random_evidence(table: TokenTable, seed: int, *, unknown: float = 0.0) -> Tensor:
    """Of many sizes and both signs, some exactly 0, a share of them NaN."""
    draw = torch.Generator().manual_seed(seed)
    size, sign, odd = torch.rand(3, len(table), generator=draw, dtype=torch.float64)
    value = 10 ** (4 * size - 5) * (sign - 0.5).sign()
    return value.where(odd > 0.05, 0.0).where(odd < 1 - unknown, math.nan)


class Batch(NamedTuple):
    """Tokens of a policy with logits = W x, contexts one-hot, all next tokens equally likely before the update (W = 0)."""

    context: list[int]
    token: list[int]
    weight: list[float]
    """c_b A_b of each token in the update."""
    vocabulary: int

    def effect(self, sources: Sequence[int]) -> list[float]:
        """sum_b c_b A_b K(a, b), K = <e_ya - p, e_yb - p> <x_a, x_b>, in nested loops."""
        v = self.vocabulary
        found = []
        for a in range(len(self.token)):
            total = 0.0
            for b in sources:
                if self.context[a] == self.context[b]:
                    factor = sum((float(self.token[a] == word) - 1 / v) * (float(self.token[b] == word) - 1 / v) for word in range(v))
                    total += self.weight[b] * factor
            found.append(total)
        return found

    def sides(self, sources: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        sources = range(len(self.token)) if sources is None else sources
        parts = ([b for b in sources if self.weight[b] * sign > 0] for sign in (1, -1))
        positive, negative = (torch.tensor(self.effect(part), dtype=torch.float64) for part in parts)
        return positive, negative

    def measured(self, rate: float) -> Tensor:
        """Change of each token's log-prob after one step of gradient ascent on sum_b c_b A_b log pi_b, by automatic differentiation."""
        start = torch.zeros(max(self.context) + 1, self.vocabulary, dtype=torch.float64, requires_grad=True)

        def logp(weights: Tensor) -> Tensor:
            return weights[self.context].log_softmax(-1)[range(len(self.token)), self.token]

        before = logp(start)
        (gradient,) = torch.autograd.grad((torch.tensor(self.weight, dtype=torch.float64) * before).sum(), start)
        return logp(start + rate * gradient).detach() - before.detach()
