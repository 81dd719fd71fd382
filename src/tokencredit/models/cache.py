"""Where converted models are kept."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$TOKENCREDIT_CACHE, or a folder of ours in the user's cache."""
    if chosen := os.environ.get("TOKENCREDIT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokencredit"
