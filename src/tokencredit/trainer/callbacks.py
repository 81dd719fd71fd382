"""Whoever watches a run. Watching never changes it."""

from typing import Any, Protocol

from tokencredit.policy.policy import Policy
from tokencredit.trainer.evaluate import Accuracy


class Listener(Protocol):
    def began(self, policy: Policy, before: Accuracy, step: int) -> None:
        """`step` training steps are done already: 0, or more for a resumed run."""
        ...

    def stepped(self, row: dict[str, Any], seconds: float) -> None: ...

    def told(self, step: int, kind: str, message: str) -> None:
        """Something a person should know of, as written to events.jsonl."""
        ...


class NobodyWatching:
    def began(self, policy: Policy, before: Accuracy, step: int) -> None:
        pass

    def stepped(self, row: dict[str, Any], seconds: float) -> None:
        pass

    def told(self, step: int, kind: str, message: str) -> None:
        pass
