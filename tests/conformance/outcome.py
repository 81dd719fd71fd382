"""What an engine made of the stored rollouts, in plain tensors that can be written to a file."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tokencredit.types import Credited, StepPlan


class BatchOutcome(NamedTuple):
    advantage: Tensor
    coefficient: Tensor | None
    credit: Tensor
    plan_digest: str
    rows_of_steps: tuple[tuple[int, ...], ...]


class Outcome(NamedTuple):
    batches: tuple[BatchOutcome, ...]
    loss: tuple[float, ...]
    """Of each optimizer step, all batches in turn."""
    gradient: Tensor
    """One row per optimizer step, before clipping."""
    weights: Tensor
    """At the end."""


def batch_outcome(credited: Credited, plan: StepPlan) -> BatchOutcome:
    steps = tuple(tuple(sorted(step.rows)) for step in plan.steps)
    return BatchOutcome(credited.advantage, credited.coefficient, credited.credit, plan.digest, steps)


def _flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([values[name].detach().float().flatten() for name in sorted(values)])


def flat_gradient(model: nn.Module) -> Tensor:
    """By parameter name; zero where a parameter has none."""
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters() if p.requires_grad}
    return _flat(found)


def flat_weights(model: nn.Module) -> Tensor:
    return _flat({name: p for name, p in model.named_parameters() if p.requires_grad})


def write(outcome: Outcome, path: Path) -> None:
    torch.save({**outcome._asdict(), "batches": [batch._asdict() for batch in outcome.batches]}, path)


def read(path: Path) -> Outcome:
    plain = torch.load(path, weights_only=True)
    return Outcome(**{**plain, "batches": tuple(BatchOutcome(**batch) for batch in plain["batches"])})
