"""Exceptions that end a run by design, and the exit codes of the command."""

from collections.abc import Sequence

EXIT_OK, EXIT_BAD_INPUT, EXIT_GUARD, EXIT_STORAGE = 0, 2, 3, 4


class ConfigError(ValueError):
    """A user's mistake; the message names the wrong value and what would be right."""


class GuardError(RuntimeError):
    """Training stopped because continuing would waste time or damage the weights."""


class BadNumbersError(GuardError):
    """A value is not finite, found before an optimizer step used it."""

    def __init__(self, stage: str, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.stage, self.rows = stage, tuple(rows)


class StorageError(RuntimeError):
    """A file could not be written (no space, no permission, a failing disk); its previous version is unchanged."""
