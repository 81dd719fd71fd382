"""Old path of `tokencredit.integrations.trl`."""

from typing import Any

from tokencredit.engine import warn_moved


def __getattr__(name: str) -> Any:
    from tokencredit.integrations import trl

    found = getattr(trl, name)
    warn_moved(f"tokencredit.engine.trl.{name}", f"tokencredit.integrations.trl.{name}")
    return found
