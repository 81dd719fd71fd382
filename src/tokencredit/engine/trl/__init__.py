"""A recipe inside TRL: `from tokencredit.engine.trl import CreditGRPOTrainer`. TRL is looked for only then."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokencredit.engine.trl.trainer import CreditGRPOTrainer

__all__ = ["CreditGRPOTrainer"]


def __getattr__(name: str) -> Any:
    if name != "CreditGRPOTrainer":
        raise AttributeError(f"module 'tokencredit.engine.trl' has no attribute {name!r}")
    from tokencredit.engine.versions import require

    require("trl")
    from tokencredit.engine.trl.trainer import CreditGRPOTrainer

    return CreditGRPOTrainer
