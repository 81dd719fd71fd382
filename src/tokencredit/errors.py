"""The ways a run ends early by design, and the exit codes people's scripts see."""

from collections.abc import Sequence

EXIT_OK, EXIT_BAD_INPUT, EXIT_GUARD, EXIT_STORAGE = 0, 2, 3, 4


class ConfigError(ValueError):
    """A user's mistake: what is wrong, and what would be right."""


class GuardError(RuntimeError):
    """Training stopped, because going on would waste time or spoil the weights."""


class BadNumbersError(GuardError):
    """Something is not a number, before an optimizer step was taken on it."""

    def __init__(self, stage: str, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.stage, self.rows = stage, tuple(rows)


class StorageError(RuntimeError):
    """A file could not be written: no space, no permission, a disk that fails. What was there before is still there."""
