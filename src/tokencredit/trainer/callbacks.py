"""Whoever watches a run. Watching never changes it."""

from typing import Any, Protocol

from tokencredit.policy.policy import Policy
from tokencredit.trainer.evaluate import Accuracy


class Callback(Protocol):
    def on_train_begin(self, policy: Policy, before: Accuracy, step: int) -> None:
        """`step` training steps are done already: 0, or more for a resumed run."""
        ...

    def on_step_end(self, row: dict[str, Any], seconds: float) -> None: ...

    def on_event(self, step: int, kind: str, message: str) -> None:
        """Something a person should know of, as written to events.jsonl."""
        ...


class NoCallback:
    def on_train_begin(self, policy: Policy, before: Accuracy, step: int) -> None:
        pass

    def on_step_end(self, row: dict[str, Any], seconds: float) -> None:
        pass

    def on_event(self, step: int, kind: str, message: str) -> None:
        pass
