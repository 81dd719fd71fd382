"""Does a recipe keep the cancellation condition of Token Gradient Cancellation (2604.13088)? It audits the objective alone."""

from collections.abc import Iterable

from tokencredit.audit.residual import CAUSES, OTHER, Cell, audit_cell
from tokencredit.audit.scene import CONDITIONS
from tokencredit.audit.subject import Subject
from tokencredit.config import Recipe
from tokencredit.text import suggest


def audit_recipe(recipe: Recipe, *, conditions: Iterable[str] = tuple(CONDITIONS), seed: int = 0) -> dict[str, Cell]:
    """Condition -> residual |sum kappa| / sum |kappa| on tokens that siblings share, and what causes it."""
    return audit_subject(Subject("recipe", recipe), conditions=conditions, seed=seed)


def audit_subject(subject: Subject, *, conditions: Iterable[str] = tuple(CONDITIONS), seed: int = 0) -> dict[str, Cell]:
    conditions = tuple(conditions)
    for name in conditions:
        if name not in CONDITIONS:
            raise ValueError(f"condition {name!r} is not known; {suggest(name, CONDITIONS)}")
    return {name: audit_cell(subject, CONDITIONS[name](seed=seed)) for name in conditions}


__all__ = ["CAUSES", "CONDITIONS", "OTHER", "Cell", "Subject", "audit_recipe", "audit_subject"]
