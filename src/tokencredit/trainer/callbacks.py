"""Callbacks observe a run; they must not change it."""

from typing import Any, Protocol

from tokencredit.policy.policy import Policy
from tokencredit.trainer.evaluate import Accuracy


class Callback(Protocol):
    def on_train_begin(self, policy: Policy, before: Accuracy, step: int) -> None:
        """`step`: training steps done already; 0, or more for a resumed run."""
        ...

    def on_step_end(self, row: dict[str, Any], seconds: float) -> None:
        """`row`: the metrics of the training step; `seconds`: its duration."""
        ...

    def on_event(self, step: int, kind: str, message: str) -> None:
        """An event for the user, as written to events.jsonl."""
        ...


class NoCallback:
    """Does nothing."""

    def on_train_begin(self, policy: Policy, before: Accuracy, step: int) -> None:
        pass

    def on_step_end(self, row: dict[str, Any], seconds: float) -> None:
        pass

    def on_event(self, step: int, kind: str, message: str) -> None:
        pass
