"""A batch on its way from rollouts to a planned update: each stage fills in more of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from tokencredit.forward.padded import TokenEvidence
from tokencredit.pipeline.credit import NOTHING_SAMPLED, SampledEvidence, StageState
from tokencredit.tasks import Problem
from tokencredit.types import Credited, Rollouts, StepPlan, StepResult


class GatheredBatch(NamedTuple):
    """What was sampled and scored; everything after it is computed from it."""

    problems: Sequence[Problem]
    """`problems[g]` is what group g answers."""
    rollouts: Rollouts
    score: Float[Tensor, " seq"]
    evidence: TokenEvidence
    rollouts_used: int
    """Sampled in all, the discarded ones included."""
    responses: int
    """Of these, the ones that answer prompts and were graded for training: without what evidence cost."""
    reference_logp: Float[Tensor, "seq tok"] | None = None
    sampled: SampledEvidence = NOTHING_SAMPLED
    bonus: Float[Tensor, " seq"] | None = None
    """What a response earns beside its score."""
    extra: Mapping[str, float] = {}
    """Numbers to log: the parts of the reward, and what evidence beyond the rollouts was sampled."""
    ungraded: Mapping[str, int] = {}
    """Why responses could not be graded, and how many."""

    def without_hidden(self) -> "GatheredBatch":
        """Hidden states are the largest part of a batch, and nobody needs them once the credit is assigned."""
        return self._replace(evidence=self.evidence._replace(hidden=None, features=None))


class PlannedBatch(NamedTuple):
    """Credited and planned: what the optimizer steps need, and what a checkpoint between two of them keeps."""

    gathered: GatheredBatch
    credited: Credited
    plan: StepPlan
    state: StageState
    """What the methods remember after this batch."""


NOTHING_TAKEN = StepResult(loss=(), gradient_norm=(), silenced_share=(), ratio_mean=())
