"""Measures A* on one batch at a checkpoint, and how well every method's credit agrees with it."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tokencredit.config.train import TrainConfig
from tokencredit.lab.credit.agreement import agreement, anatomy_record, coefficient_table, concentration, flat, known_tokens
from tokencredit.lab.credit.batch import SampledBatch, alike, draw_batch, truth_of
from tokencredit.lab.credit.prefix_tree import Truth
from tokencredit.lab.credit.quality import redrawn
from tokencredit.lab.credit.recipes import ORACLE, Assigned, CreditAssigner, CreditOrder, Field, LeftOut, Method, uniform_twins
from tokencredit.policy.policy import Policy
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Task, format_classes
from tokencredit.trainer.token_table import label_tokens

Notify = Callable[[str, int, int], None]
"""Progress callback: stage, number done, total."""


class Subject(NamedTuple):
    """A fixed policy on a task."""

    policy: Policy
    task: Task
    config: TrainConfig


class Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


class Measured(NamedTuple):
    """Results on the truth batch, with the batch, which the gradient comparison needs."""

    batch: SampledBatch
    truth: Truth
    assigned: dict[str, Assigned]
    left_out: list[LeftOut]
    record: dict[str, Any]


def measure_credit(subject: Subject, order: CreditOrder, field: Field, notify: Notify, clock: Clock) -> Measured:
    """Measure A* of one batch and compute every method's credit on it."""
    policy, task, config = subject
    batch = draw_batch(policy, task, config, prompts=order.prompts, purpose="truth", keep_hidden=True)
    assigned: dict[str, Assigned] = {}
    left_out = list(field.left_out)
    assign, methods = (
        CreditAssigner(policy, task, batch, config, seed=derive_seed(config.seed, "truth-credit")),
        with_uniform_twins(field.methods),
    )
    for number, method in enumerate(methods):
        notify("credit", number, len(methods))
        found = assign.why_not(method) or assign(method)
        if isinstance(found, str):
            left_out.append(LeftOut(method.name, "all", found))
        else:
            assigned[method.name] = found
    clock.lap("credit")
    truth = truth_of(
        policy,
        task,
        batch,
        config,
        continuations=order.continuations,
        seed=derive_seed(config.seed, "truth"),
        notify=lambda done, total: notify("truth", done, total),
    )
    clock.lap("truth")
    shown = [one.name for one in field.methods if one.name in assigned]
    record = _record(subject, order, batch, truth, {name: assigned[name] for name in shown})
    clock.lap("agreement")
    return Measured(batch, truth, assigned, left_out, record)


def with_uniform_twins(methods: Sequence[Method]) -> list[Method]:
    return [*methods, *uniform_twins(methods)]


def _record(subject: Subject, order: CreditOrder, batch: SampledBatch, truth: Truth, assigned: dict[str, Assigned]) -> dict[str, Any]:
    rollouts = batch.rollouts
    known, labels = known_tokens(batch, truth), label_tokens(subject.policy, subject.task, batch.problems, rollouts)
    classes = [name for name, kept in zip(labels.token_class, known[rollouts.mask.cpu()].tolist(), strict=True) if kept]
    advantage, variance, group = flat(truth.advantage, known), flat(truth.variance, known), flat(rollouts.group, known).long()
    decisive = advantage.abs() > order.decisive
    formats = format_classes(subject.task)
    format_token = torch.tensor([name in formats for name in classes]) if formats else None
    times = redrawn(len(batch.problems), draws=order.resamples, seed=derive_seed(subject.config.seed, "resamples"))
    given = {name: one.credit.cpu() for name, one in assigned.items()} | {ORACLE: truth.advantage}
    credits = {name: flat(credit, known) for name, credit in given.items()}
    sides = {name: flat(one.advantage, known) for name, one in assigned.items()}
    # The oracle has no outcome advantage; the baseline's sign separates its sides.
    sides[ORACLE] = next(iter(sides.values()))
    same = alike(credits)
    rows = []
    for name, credit in credits.items():
        found = agreement(credit, sides[name], advantage, decisive, format_token, group, times)
        rows.append(
            {
                "method": name,
                "same_credit_as": None if same[name] == name else same[name],
                **{field: getattr(found, field)._asdict() for field in found._fields},
                "by_class": coefficient_table(credit, sides[name], classes),
                "extra_rollouts_per_rollout": assigned[name].sampled / len(rollouts.prompts) if name in assigned else None,
            }
        )
    errors = flat(truth.value_error, known)
    return {
        "truth": {
            "rollouts": len(rollouts.prompts),
            "prompts": len(batch.problems),
            "prefixes": truth.prefixes,
            "continuations": truth.continuations,
            "value_error": float(errors[errors > 0].mean()) if bool((errors > 0).any()) else math.nan,
            "prompt_value": truth.prompt_value.tolist(),
            "format_classes": sorted(formats),
            **concentration(advantage, variance, classes),
        },
        "agreement": {
            "decisive_above": order.decisive,
            "decisive_tokens": int(decisive.sum()),
            "resamples": order.resamples,
            "rows": rows,
        },
        "anatomy": anatomy_record(batch, truth, labels, given, same, times, order),
    }
