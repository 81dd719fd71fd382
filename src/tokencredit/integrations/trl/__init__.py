"""A recipe inside TRL: `from tokencredit.integrations.trl import CreditGRPOTrainer`. Only this import needs TRL."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokencredit.integrations.trl.trainer import CreditGRPOTrainer

__all__ = ["CreditGRPOTrainer"]


def __getattr__(name: str) -> Any:
    if name != "CreditGRPOTrainer":
        raise AttributeError(f"module 'tokencredit.integrations.trl' has no attribute {name!r}")
    from tokencredit.integrations.support import require

    require("trl")
    from tokencredit.integrations.trl.trainer import CreditGRPOTrainer

    return CreditGRPOTrainer
