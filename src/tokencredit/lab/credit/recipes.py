"""The methods of a credit benchmark, its sizes, and each method's credit on a batch."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tokencredit.config import DeltaCredit, Recipe, UniformCredit
from tokencredit.config.messages import shortened
from tokencredit.config.recipe import varied
from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import read_toml, resolve
from tokencredit.config.syntax import as_layer, read_recipe
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.padded import row_cost
from tokencredit.lab.credit.batch import SampledBatch
from tokencredit.optim.update import step_kappa
from tokencredit.pipeline.build import sampled_evidence
from tokencredit.pipeline.credit import BatchEvidence
from tokencredit.pipeline.microbatch import step_seed
from tokencredit.policy.policy import Policy
from tokencredit.rollout.collect import CollectedBatch
from tokencredit.rollout.extra import sample_extra
from tokencredit.rollout.scoring import credit_pipeline, model_facts
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Task
from tokencredit.trainer.preflight import check_model_and_task


class CreditOrder(NamedTuple):
    prompts: int = 32
    """Prompts of the batch whose A* is measured."""
    continuations: int = 128
    """Continuations per prefix."""
    decisive: float = 0.1
    """A token whose |A*| is above this is decisive."""
    reference: int = 32768
    """Rollouts of the reference gradient; 0 leaves gradients out."""
    batches: int = 32
    batch_prompts: int = 16
    extra: float = 2.0
    """The most extra rollouts per rollout that a recipe may sample in the small batches."""
    resamples: int = 1000
    """Bootstrap resamples of prompts."""
    examples: int = 2
    """Responses shown of each recipe's credit; 0 shows none."""


USUAL = CreditOrder()
QUICK = CreditOrder(prompts=8, continuations=32, reference=1024, batches=6, batch_prompts=6, resamples=200)
"""A smoke test; its numbers are too noisy for conclusions."""


def check_order(order: CreditOrder, group_size: int) -> None:
    least = {"prompts": 2, "continuations": 2, "batches": 2, "batch_prompts": 1, "resamples": 1, "examples": 0}
    for name, smallest in least.items():
        if getattr(order, name) < smallest:
            raise ConfigError(f"{name.replace('_', '-')} is {getattr(order, name)}; give at least {smallest}")
    if not 0 < order.decisive < 1:
        raise ConfigError(f"decisive is {order.decisive:g}; it must lie between 0 and 1")
    if not order.extra >= 0:
        raise ConfigError(f"extra is {order.extra:g}; give 0 or more")
    if group_size < 2:
        raise ConfigError(f"sampling.group_size is {group_size}, and methods that compare siblings are measured; give at least 2")
    if order.reference and order.reference < 4 * group_size:
        raise ConfigError(
            f"reference is {order.reference}; two halves of two groups take {4 * group_size} rollouts, or give 0 to leave gradients out"
        )
    if order.reference < 0:
        raise ConfigError(f"reference is {order.reference}; give 0 or more")


BASELINE = "grpo"
CONTROL = "grpo x random 0.8-1.2"
"""An A/A control: the baseline's credit times random numbers. Its differences to the baseline are chance."""
ORACLE = "oracle A*"
TWIN = "{} with uniform credit"


class Method(NamedTuple):
    name: str
    recipe: Recipe
    twin: str | None
    """The name of the same recipe with uniform credit; None if its credit is uniform already."""

    def on(self, config: TrainConfig) -> TrainConfig:
        """The configuration of the fixed policy and task with this recipe's stages."""
        return config.model_copy(update={field: getattr(self.recipe, field) for field in Recipe.model_fields})


class LeftOut(NamedTuple):
    recipe: str
    part: str
    why: str


class Field(NamedTuple):
    methods: list[Method]
    left_out: list[LeftOut]


def find_methods(names: str | None) -> Field:
    """Recipes (with settings of their own or not) and config files; all recipes by default. Baseline and control are always there."""
    requested = list(RECIPES) if names is None else [name.strip() for name in names.split(",") if name.strip()]
    if not requested:
        raise ConfigError("recipes is empty; name at least one, or leave it out for all")
    found: dict[str, Recipe] = {
        BASELINE: RECIPES[BASELINE].recipe,
        CONTROL: varied(RECIPES[BASELINE].recipe, credit=DeltaCredit(score="random")),
    }
    left_out: list[LeftOut] = []
    for name in requested:
        recipe = _recipe(name)
        if recipe.filter_groups:
            why = "filters groups while sampling; on given groups it equals the same recipe without filter_groups"
            left_out.append(LeftOut(name, "all", why))
        elif recipe.kl.beta:
            left_out.append(LeftOut(name, "all", "kl.beta is above 0, and the policy is its own reference here; set it to 0"))
        else:
            found[name] = recipe
    return Field([_with_twin(name, recipe, found) for name, recipe in found.items()], left_out)


def _recipe(name: str) -> Recipe:
    if name.endswith(".toml"):
        return resolve([read_toml(Path(name))])
    wanted = read_recipe(name, tuple(Recipe.model_fields))
    if not wanted.settings:
        return RECIPES[wanted.recipe].recipe
    try:
        return resolve([{"recipe": wanted.recipe}, as_layer(wanted.settings)])
    except ConfigError as problem:
        raise ConfigError(f"recipes: {shortened(name)}: {problem}") from None


def _with_twin(name: str, recipe: Recipe, known: dict[str, Recipe]) -> Method:
    if isinstance(recipe.credit, UniformCredit):
        return Method(name, recipe, None)
    stages = {field: getattr(recipe, field) for field in Recipe.model_fields}
    plain = Recipe.model_validate(stages | {"credit": UniformCredit()})
    same = next((other for other, found in known.items() if _stages(found) == _stages(plain)), None)
    return Method(name, recipe, same or TWIN.format(name))


def _stages(recipe: Recipe) -> dict[str, object]:
    return {field: getattr(recipe, field) for field in Recipe.model_fields}


def uniform_twins(methods: Sequence[Method]) -> list[Method]:
    """The uniform-credit versions of these methods that are not among them."""
    known = {one.name for one in methods}
    return [
        Method(one.twin, Recipe.model_validate(_stages(one.recipe) | {"credit": UniformCredit()}), None)
        for one in methods
        if one.twin is not None and one.twin not in known
    ]


class Assigned(NamedTuple):
    credit: Float[Tensor, "seq tok"]
    advantage: Float[Tensor, " seq"]
    ascent: Float[Tensor, "seq tok"]
    """-kappa of one optimizer step over the whole batch: the gradient of the maximised objective by each log-prob."""
    sampled: int
    """Rollouts beyond the batch that the recipe's evidence took."""


class CreditAssigner:
    """Computes the credit of methods on one batch. Methods that need the same extra rollouts share them."""

    def __init__(self, policy: Policy, task: Task, batch: SampledBatch, config: TrainConfig, *, seed: int) -> None:
        self.policy, self.task, self.batch, self.config, self.seed = policy, task, batch, config, seed
        self._sampled: dict[str, CollectedBatch] = {}

    def why_not(self, method: Method) -> str | None:
        """Why the preflight check rejects the recipe for this model and task; None if it passes."""
        try:
            check_model_and_task(self.policy, self.task, self.batch.problems, method.on(self.config))
        except ConfigError as problem:
            return str(problem)
        return None

    def extra(self, chosen: TrainConfig) -> CollectedBatch:
        needs = sampled_evidence(chosen)
        requested = {
            "shape": chosen.shape if "revisions" in needs else None,
            "credit": chosen.credit if "prefix-values" in needs else None,
        }
        key = f"{sorted(needs)} {requested}"
        if key not in self._sampled:
            batch, seed = self.batch, derive_seed(self.seed, "extra")
            collected = CollectedBatch(
                batch.problems, batch.rollouts, batch.score, batch.evidence, rollouts_used=0, responses=len(batch.score)
            )
            self._sampled[key] = sample_extra(self.policy, self.task, chosen, collected, seed=seed)
        return self._sampled[key]

    def __call__(self, method: Method) -> Assigned | str:
        """The method's credit, or the reason why it cannot be computed."""
        try:
            return self._assign(method.on(self.config))
        except ConfigError as problem:
            return str(problem)

    def _assign(self, chosen: TrainConfig) -> Assigned:
        """At the sampling policy every ratio is 1; methods with state start from their initial state."""
        batch, seed, pipeline, extra = self.batch, self.seed, credit_pipeline(chosen), self.extra(chosen)
        evidence = BatchEvidence(batch.evidence, extra=extra.sampled, model=model_facts(self.policy))
        credited, _ = pipeline.credit(batch.rollouts, batch.score, evidence, seed=derive_seed(seed, "credit"))
        plan = pipeline.plan(
            credited,
            optimizer_steps=1,
            max_tokens=chosen.optimizer.max_tokens,
            cost=row_cost(batch.rollouts),
            seed=derive_seed(seed, "plan"),
        )
        kappa = torch.zeros_like(credited.old_logp)
        for number, step in enumerate(plan.steps):
            drawing = step_seed(derive_seed(seed, "objective"), number)
            kappa += step_kappa(credited, step, pipeline.objective, credited.old_logp, seed=drawing)
        return Assigned(credited.credit, credited.advantage, -kappa, extra.rollouts_used)
