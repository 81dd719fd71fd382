"""The two ways a run ends early by design, and the exit codes people's scripts see."""

EXIT_OK, EXIT_BAD_INPUT, EXIT_GUARD = 0, 2, 3


class ConfigError(ValueError):
    """A user's mistake: what is wrong, and what would be right."""


class GuardError(RuntimeError):
    """Training stopped because something is not a number, before an optimizer step was taken on it."""
