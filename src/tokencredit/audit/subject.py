"""What is audited: a recipe, or a user's objective in its place, named by import path (`package.module:function`)."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokencredit.audit.scene import LENGTH_LIMIT, Scene
from tokencredit.config import Recipe
from tokencredit.errors import ConfigError
from tokencredit.objective import Objective, TokenInputs
from tokencredit.pipeline.build import AggregatedObjective, build_objective, build_planner
from tokencredit.pipeline.credit import BatchEvidence, CreditPipeline, ExtraEvidence
from tokencredit.seeds import derive_seed
from tokencredit.types import StepPlan, TokenScores


class Subject(NamedTuple):
    name: str
    recipe: Recipe
    objective: Objective | None = None
    """Instead of the recipe's own."""

    def built(self) -> AggregatedObjective:
        own = build_objective(self.recipe, max_length=LENGTH_LIMIT)
        return own if self.objective is None else own._replace(objective=self.objective)


class Assigned(NamedTuple):
    """What the stages before the objective make of a scene."""

    advantage: Tensor
    coefficient: Tensor | None
    credit: Tensor
    correction: Tensor
    """Weights for the difference between sampler and trainer; 1 where a recipe has no correction."""


@torch.no_grad()
def assign(recipe: Recipe, scene: Scene) -> Assigned:
    """Shape, advantage and credit as in training, on the scene's evidence; methods that keep a state start without one."""
    pipeline = CreditPipeline(_without_head(recipe), max_new_tokens=LENGTH_LIMIT)
    evidence = BatchEvidence(
        TokenScores(scene.old_logp, scene.entropy, scene.hidden),
        extra=ExtraEvidence(scene.repaired, scene.edited, scene.prefix_value, scene.greedy_score),
    )
    credited, _ = pipeline.credit(scene.rollouts(), scene.score, evidence, seed=derive_seed(scene.seed, "audit-credit"))
    correction = torch.ones_like(scene.logp) if credited.correction is None else credited.correction
    return Assigned(credited.advantage, credited.coefficient, credited.credit, correction)


def _without_head(recipe: Recipe) -> Recipe:
    """A scene has hidden states but no LM head, so DelTA's other proxies are audited as `row`."""
    if not recipe.credit.needs_head:
        return recipe
    return recipe.model_copy(update={"credit": recipe.credit.model_copy(update={"proxy": "row"})})


def plan_for(recipe: Recipe, scene: Scene, advantage: Tensor, built: AggregatedObjective) -> StepPlan:
    return build_planner(recipe, built)(
        scene.mask.sum(-1),
        scene.group,
        advantage=advantage,
        optimizer_steps=scene.optimizer_steps,
        max_tokens=scene.mask.numel(),
        seed=derive_seed(scene.seed, "audit-plan"),
    )


def load_objective(path: str) -> Objective:
    """An `Objective`, or a function of TokenInputs that returns the loss: one per token, or a single number.

    A single number must be divided as the function means it: neither weights nor a denominator are applied to it. The audit
    probes a function through `inputs.credit`; it cannot audit one that reads `inputs.advantage` instead.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"objective is {path!r}; write package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except Exception as problem:
        raise ConfigError(f"objective {path!r}: module {module_name!r} cannot be imported: {problem}") from None
    found = getattr(module, name, None)
    if isinstance(found, Objective):
        return found
    if not callable(found):
        raise ConfigError(f"objective {path!r}: {module_name!r} has no function {name!r}")
    return Objective(token_loss=_checked(path, found))


def _checked(path: str, function: Callable[[TokenInputs], Any]) -> Callable[[TokenInputs, Any], Tensor]:
    def token_loss(inputs: TokenInputs, statistic: Any) -> Tensor:
        try:
            loss = function(inputs)
        except Exception as problem:
            raise ConfigError(f"objective {path!r} failed: {type(problem).__name__}: {problem}") from None
        if not isinstance(loss, Tensor) or (loss.dim() and loss.shape != inputs.mask.shape):
            returned = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(
                f"objective {path!r} returned {returned}; it must return a tensor of shape {tuple(inputs.mask.shape)} or a single number"
            )
        if not loss.requires_grad:
            raise ConfigError(f"objective {path!r} returned a loss that does not depend on inputs.logp")
        return loss

    return token_loss
