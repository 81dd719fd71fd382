"""Import paths of version 0.1, which keep working: `tokencredit.engine.X` is `tokencredit.integrations.X` now."""

import warnings


def warn_moved(old: str, new: str) -> None:
    """Tell the user which import to write instead."""
    warnings.warn(f"{old} has moved: import {new} instead", DeprecationWarning, stacklevel=3)
