"""One training step while it is under way: how far it got, and whether a guard refused it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tokencredit.errors import BadNumbersError
from tokencredit.forward.memory import Tell
from tokencredit.optim.update import TakenStep, as_result, as_taken
from tokencredit.pipeline.credit import StageState
from tokencredit.timing import Stopwatch
from tokencredit.trainer.batch import GatheredBatch, PlannedBatch
from tokencredit.trainer.batch_file import StoredBatch
from tokencredit.trainer.step import Stepper, TrainedBatch


@dataclass(slots=True, kw_only=True)
class Attempt:
    number: int
    """Of the training step, counted from 0."""
    look: bool
    """Whether its update is watched; then it is not left half-way."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    gathered: GatheredBatch | None = None
    planned: PlannedBatch | None = None
    taken: list[TakenStep] = field(default_factory=list)
    trained: TrainedBatch | None = None
    """None where nothing was learnt from: dynamic sampling or a balanced plan left nothing, or a guard refused all of it."""
    refusal: BadNumbersError | None = None

    def gather(self, stepper: Stepper, kept: StoredBatch | None, tell: Tell) -> None:
        """A new batch, or the one that a checkpoint kept."""
        if kept is not None:
            self.gathered, self.planned, self.taken = kept.gathered, kept.planned, as_taken(kept.taken)
            # What the steps already taken did cannot be looked at any more.
            self.look = self.look and not self.taken
            return
        try:
            self.gathered = stepper.gather(self.number, self.watch, tell)
        except BadNumbersError as bad:
            self.refusal = bad

    def plan(self, stepper: Stepper, state: StageState) -> None:
        if self.gathered is None or not self.gathered.problems or self.planned is not None:
            return
        try:
            self.planned = stepper.plan(self.number, self.gathered, state, self.watch)
            self.gathered = self.planned.gathered
        except BadNumbersError as bad:
            self.refusal = bad

    def take(self, stepper: Stepper, stop_asked: Callable[[], bool], tell: Tell) -> None:
        """Optimizer steps that stand before a refused one are taken and stay taken."""
        if self.planned is None:
            return
        heed = (lambda: False) if self.look else stop_asked
        try:
            self.trained = stepper.take(self.number, self.planned, self.watch, look=self.look, taken=self.taken, stop_asked=heed, tell=tell)
        except BadNumbersError as bad:
            self.refusal = bad
            if self.taken:
                self.trained = TrainedBatch(
                    self.planned.gathered.problems, self.planned.credited, self.planned.plan, as_result(self.taken), None
                )

    def state(self, before: StageState) -> StageState:
        """What the methods remember: a batch that moved nothing is forgotten."""
        return before if self.planned is None or (self.refusal is not None and not self.taken) else self.planned.state
