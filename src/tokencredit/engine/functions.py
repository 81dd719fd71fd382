"""Old path of `tokencredit.integrations.hooks`."""

from typing import Any

from tokencredit.engine import warn_moved


def __getattr__(name: str) -> Any:
    from tokencredit.integrations import hooks

    found = getattr(hooks, name)
    warn_moved(f"tokencredit.engine.functions.{name}", f"tokencredit.integrations.hooks.{name}")
    return found
