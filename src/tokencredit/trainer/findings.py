"""Findings of an observed training step: token table, microscope evidence, Monte-Carlo evidence, diagnosis."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config.train import TrainConfig
from tokencredit.credit.delta.vectors import row_vectors
from tokencredit.diagnose import FINDINGS
from tokencredit.diagnose.cancellation import cancellation
from tokencredit.diagnose.coupling import Sources, coupling
from tokencredit.diagnose.drift import drift
from tokencredit.diagnose.effect import effect
from tokencredit.diagnose.entropy import entropy
from tokencredit.diagnose.flips import flips
from tokencredit.diagnose.masses import centroid_contrast, masses
from tokencredit.diagnose.table import token_table
from tokencredit.diagnose.tax import tax
from tokencredit.diagnose.value import token_value
from tokencredit.forward.padded import head_weight
from tokencredit.optim.microscope import observation_memory_errors
from tokencredit.seeds import derive_seed
from tokencredit.storage.run_dir import EVIDENCE_COLUMNS
from tokencredit.tasks import Task, format_classes
from tokencredit.trainer.monte_carlo import NOTHING_SAMPLED, MonteCarlo
from tokencredit.trainer.step import StepState
from tokencredit.trainer.token_table import TokenLabels
from tokencredit.types import Finding


class Diagnosis(NamedTuple):
    findings: list[Finding]
    columns: dict[str, list[Any]]
    """The columns of `run_dir.EVIDENCE_COLUMNS`, one entry per token of the batch."""
    method: str
    rollouts_used: int
    groups_observed: int
    groups: int

    def to_json(self, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "rollouts_used": self.rollouts_used,
            "method": self.method,
            "looked_at": {"groups": self.groups_observed, "of": self.groups},
            "findings": [finding.to_json() for finding in self.findings],
        }


class StepDiagnosis:
    """Holds the evidence of every token of an observed step; each finding is one method, which adds what it found of each token."""

    def __init__(
        self,
        batch: StepState,
        labels: TokenLabels,
        task: Task | None,
        config: TrainConfig,
        *,
        step: int,
        history: Sequence[tuple[int, float]],
        only: Collection[str],
    ) -> None:
        """`history`: (training step, mean entropy) of the run so far."""
        observation, (collected, self.credited, self.plan) = batch.observation, batch.assigned()
        assert observation is not None, "this step was not observed"
        with observation_memory_errors():
            evidence = observation.evidence()
        rollouts = self.credited.rollouts
        self.evidence, self.history, self.settings = evidence, history, config.diagnose
        self.table = table = token_table(self.credited, self.plan, text=labels.text, token_class=labels.token_class)
        self.head, self.temperature = head_weight(observation.before.model), config.sampling.temperature
        self.seed = derive_seed(config.seed, "diagnose", step)
        self.format_classes = frozenset() if task is None else format_classes(task)
        self.sampled = NOTHING_SAMPLED
        if task is not None:
            change = (evidence.moved.after.logp - evidence.moved.before.logp)[rollouts.mask].cpu()
            sampler = MonteCarlo(observation.before, task, collected.problems, rollouts, config)
            self.sampled = sampler.sample(observation.policy, table, change, seed=self.seed, only=only)
        self.seen = torch.isin(table.row, evidence.rows.cpu()).nonzero()[:, 0]
        self.seen_table = table.select(self.seen)
        before = evidence.moved.before.logp
        self.tokens: dict[str, Tensor] = {
            "change_first": self._flat(evidence.logp_first - before),
            "change_step": self._flat(evidence.moved.after.logp - before),
            "kl": self._flat(evidence.moved.kl),
            "entropy_after": self._flat(evidence.moved.after.entropy),
        }
        inside = self.credited.rollouts.mask[evidence.rows]
        names = {"first": "predicted_first", "first_positive": "predicted_first_positive", "first_negative": "predicted_first_negative"}
        names |= {"step": "predicted_step", "mini_positive": "raw_mini_positive", "mini_negative": "raw_mini_negative"}
        for name, value in evidence.effects._asdict().items():
            self._add_column(names.get(name, name), value[inside])
        if self.sampled.value is not None:
            self.tokens |= {"value_before": self.sampled.value.before, "value_after": self.sampled.value.after}

    def _flat(self, value: Float[Tensor, "seq tok"]) -> Float[Tensor, " tok"]:
        return value[self.credited.rollouts.mask].cpu().double()

    def _add_column(self, name: str, value: Float[Tensor, " seen"]) -> None:
        column = torch.full((len(self.table),), math.nan, dtype=torch.float64)
        column[self.seen] = value.cpu().double()
        self.tokens[name] = column

    def _seen(self, name: str) -> Float[Tensor, " seen"]:
        return self.tokens[name][self.seen]

    def flips(self) -> list[Finding]:
        return [flips(self.table, self.tokens["change_first"], self.tokens["change_step"])]

    def effect(self) -> list[Finding]:
        found = effect(
            self.seen_table,
            predicted_first=self._seen("predicted_first"),
            change_first=self._seen("change_first"),
            predicted_step=self._seen("predicted_step"),
            change_step=self._seen("change_step"),
            raw=self._seen("raw_positive") + self._seen("raw_negative"),
            method=self.evidence.method,
        )
        return [found]

    def cancellation(self) -> list[Finding]:
        sides = (self._seen(name) for name in ("raw_positive", "raw_negative", "raw_mini_positive", "raw_mini_negative"))
        found = cancellation(self.seen_table, *sides)
        self._add_column("cancellation", found.per_token)
        self._add_column("cancellation_mini", found.per_token_mini)
        return [found.finding]

    def coupling(self) -> list[Finding]:
        evidence = self.evidence
        rollouts, hidden = self.credited.rollouts, evidence.moved.before.hidden
        assert hidden is not None
        inside = torch.zeros_like(rollouts.mask)
        inside[list(self.plan.steps[0].rows)] = True
        inside &= rollouts.loss_mask
        source_index = torch.full(rollouts.mask.shape, -1, device=inside.device)
        source_index[inside] = torch.arange(int(inside.sum()), device=inside.device)
        rows, seen = evidence.rows, rollouts.mask[evidence.rows]
        # Log-probs of the same pass as the hidden states: those of training may come from a bfloat16 pass.
        found = coupling(
            replace(self.seen_table, logp=evidence.moved.before.logp[rows][seen].cpu()),
            hidden[rows][seen],
            self.head,
            Sources(hidden[inside], rollouts.tokens[inside], -evidence.kappa[inside]),
            source_index[rows][seen],
            temperature=self.temperature,
            limit=self.settings.coupling_tokens,
            seed=self.seed,
        )
        for name in ("own", "same", "other"):
            self._add_column(f"coupling_{name}", getattr(found, name))
        return [found.finding]

    def tax(self) -> list[Finding]:
        before, after = (self.tokens.get(name) for name in ("value_before", "value_after"))
        classes = self.format_classes
        return [tax(self.table, self.tokens["kl"], format_classes=classes, value_before=before, value_after=after)]

    def drift(self) -> list[Finding]:
        found = [drift(self.table, self.tokens["change_step"])]
        fresh = self.sampled.drift
        return found if fresh is None else [*found, drift(fresh.table, fresh.change, source="fresh")]

    def entropy(self) -> list[Finding]:
        return [entropy(self.table, self.tokens["entropy_after"], self.history)]

    def masses(self) -> list[Finding]:
        credited, hidden = self.credited, self.evidence.moved.before.hidden
        assert hidden is not None
        rollouts, mask = credited.rollouts, credited.rollouts.loss_mask
        contrast = centroid_contrast(
            row_vectors(credited.old_logp[mask], hidden[mask]),
            credited.advantage[:, None].expand(mask.shape)[mask],
            None if credited.coefficient is None else credited.coefficient[mask],
        )
        return [masses(credited.advantage, credited.scored.score, rollouts.group, credited.credit, mask, contrast)]

    def value(self) -> list[Finding]:
        if self.sampled.value is None:
            return []
        sides = (self.tokens[name] for name in ("change_step", "value_before", "value_after"))
        return [token_value(self.table, *sides, seed=self.seed)]

    def columns(self, step: int) -> dict[str, list[Any]]:
        table = self.table
        known: dict[str, list[Any]] = {
            "step": [step] * len(table),
            "row": table.row.tolist(),
            "position": table.position.tolist(),
        }
        nothing = [None] * len(table)
        evidence = {name: [None if number != number else number for number in value.tolist()] for name, value in self.tokens.items()}
        return {name: known.get(name) or evidence.get(name) or nothing for name in EVIDENCE_COLUMNS}


def diagnose_step(
    batch: StepState,
    labels: TokenLabels,
    task: Task | None,
    config: TrainConfig,
    *,
    step: int,
    history: Sequence[tuple[int, float]],
    only: Collection[str] = FINDINGS,
) -> Diagnosis:
    """The findings of an observed step, in the order of FINDINGS; `step` counts from 1.

    Without a task (rollouts of another trainer) nothing is sampled and no token class counts as format.
    """
    found = StepDiagnosis(batch, labels, task, config, step=step, history=history, only=only)
    findings = [finding for name in FINDINGS if name in only for finding in cast(Callable[[], list[Finding]], getattr(found, name))()]
    group = found.credited.rollouts.group
    observed = len(group[found.evidence.rows].unique())
    return Diagnosis(findings, found.columns(step), found.evidence.method, found.sampled.rollouts_used, observed, len(group.unique()))
