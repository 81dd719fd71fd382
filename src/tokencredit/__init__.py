"""Token-level credit for RLVR: rollouts in, one number per token out. This is the public API; each name is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokencredit.advantage import group_advantage
    from tokencredit.audit import audit_recipe
    from tokencredit.batching import make_plan
    from tokencredit.config.recipes import RECIPES
    from tokencredit.config.resolve import resolve
    from tokencredit.credit import delta_coefficients
    from tokencredit.objective import clipped_surrogate
    from tokencredit.trainer.loop import train
    from tokencredit.types import Credited, PlannedStep, Rollouts, Scored, StepPlan, StepResult

_HOME = {
    "group_advantage": "tokencredit.advantage",
    "delta_coefficients": "tokencredit.credit",
    "clipped_surrogate": "tokencredit.objective",
    "make_plan": "tokencredit.batching",
    "audit_recipe": "tokencredit.audit",
    "Rollouts": "tokencredit.types",
    "Scored": "tokencredit.types",
    "Credited": "tokencredit.types",
    "PlannedStep": "tokencredit.types",
    "StepPlan": "tokencredit.types",
    "StepResult": "tokencredit.types",
    "RECIPES": "tokencredit.config.recipes",
    "resolve": "tokencredit.config.resolve",
    "train": "tokencredit.trainer.loop",
}

__all__ = [
    "RECIPES",
    "Credited",
    "PlannedStep",
    "Rollouts",
    "Scored",
    "StepPlan",
    "StepResult",
    "audit_recipe",
    "clipped_surrogate",
    "delta_coefficients",
    "group_advantage",
    "make_plan",
    "resolve",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: importing the package loads no torch, so `tokencredit -h` starts fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'tokencredit' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
