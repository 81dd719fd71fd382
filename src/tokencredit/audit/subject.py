"""What is audited: a recipe, or a function of somebody's own in place of its objective."""

from typing import NamedTuple

import torch
from torch import Tensor

from tokencredit.advantage import AdvantageInputs
from tokencredit.audit.scene import LENGTH_LIMIT, Scene
from tokencredit.config import Recipe
from tokencredit.credit import CreditInputs
from tokencredit.objective import Objective
from tokencredit.pipeline.build import (
    AggregatedObjective,
    build_advantage,
    build_correction,
    build_credit,
    build_objective,
    build_planner,
    build_shape,
)
from tokencredit.seeds import derive_seed
from tokencredit.shape import ShapeInputs
from tokencredit.types import StepPlan


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
    """Weights for the difference between sampler and trainer; 1 where a recipe makes none."""


@torch.no_grad()
def assign(recipe: Recipe, scene: Scene) -> Assigned:
    """Shape, advantage and credit as in training, on the scene's evidence; methods that remember start afresh."""
    length = scene.mask.sum(-1)
    reward = scene.score + build_shape(recipe).adjust(ShapeInputs(scene.score, length, LENGTH_LIMIT, scene.repaired))
    entropy = float(scene.entropy[scene.mask].mean())
    compared = build_advantage(recipe)(AdvantageInputs(reward, scene.group, length, scene.score, entropy, scene.greedy_score), {})
    outcome = build_credit(_without_head(recipe)).assign(
        CreditInputs(
            advantage=compared.advantage,
            mask=scene.mask,
            group=scene.group,
            tokens=scene.tokens,
            logp=scene.old_logp,
            entropy=scene.entropy,
            seed=derive_seed(scene.seed, "audit-credit"),
            hidden=scene.hidden,
            score=scene.score,
            edited=scene.edited,
            prefix_value=scene.prefix_value,
        ),
        {},
    )
    correct = build_correction(recipe)
    correction = torch.ones_like(scene.logp) if correct is None else correct(scene.old_logp, scene.behavior_logp, scene.mask)
    return Assigned(compared.advantage, outcome.coefficient, outcome.credit, correction)


def _without_head(recipe: Recipe) -> Recipe:
    """A scene has hidden states but no LM head, so DelTA's other proxies are looked at as `row`."""
    if getattr(recipe.credit, "proxy", "row") == "row":
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
