"""The microscope: what the optimizer steps of a plan do to every token, predicted at first order and measured during the update.

The microscope copies the policy before the first optimizer step and takes all gradients on the copy. It only reads the trained
policy and its optimizer, so a run with the microscope and one without end with the same bits.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.errors import GuardError
from tokencredit.forward.divergence import Movement, movement
from tokencredit.forward.first_order import Direction, Method, predicted_change
from tokencredit.forward.modes import ForwardOptions
from tokencredit.forward.padded import score_rows, trainable_parameters
from tokencredit.masked import group_statistics
from tokencredit.optim.update import accumulate_gradient, step_kappa
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.pipeline.microbatch import step_seed
from tokencredit.policy.policy import Policy
from tokencredit.types import Credited, PlannedStep, Rollouts, StepPlan


def clip_factor(norm: float, gradient_clip: float) -> float:
    """The factor that torch's clip_grad_norm_ applies to a gradient of this norm."""
    return min(1.0, gradient_clip / (norm + 1e-6))


@torch.no_grad()
def adamw_part(optimizer: torch.optim.AdamW, named: Mapping[str, Tensor], gradient: Direction, *, clip: float) -> dict[str, Tensor]:
    """The part of the last optimizer step that came from `gradient`; `named` are the optimizer's parameters.

    AdamW's step is linear in the gradient once its divisor is known:
    change = -rate / bias1 (1 - beta1) clip (g+ + g-) / (sqrt(v / bias2) + eps) + momentum and decay
    """
    owner = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    part: dict[str, Tensor] = {}
    for name, parameter in named.items():
        group, state = owner[id(parameter)], optimizer.state[parameter]
        beta1, beta2 = group["betas"]
        count = float(state["step"])
        divisor = (state["exp_avg_sq"] / (1 - beta2**count)).sqrt() + group["eps"]
        part[name] = -group["lr"] * (1 - beta1) / (1 - beta1**count) * clip * gradient[name] / divisor
    return part


class MicroscopeConfig(NamedTuple):
    """Settings of an observation; none of them changes the observed update."""

    temperature: float
    max_tokens: int
    gradient_clip: float
    dtype: str
    seed: int
    """The seed that training uses for the optimizer steps of this batch."""
    groups: int
    """Number of groups whose tokens' change is predicted; 0 takes all."""
    recompute: bool = False
    """As in `accumulate_gradient`."""


class Effects(NamedTuple):
    """First-order change of the observed responses' log-probs, by source."""

    first: Float[Tensor, "seq tok"]
    first_positive: Float[Tensor, "seq tok"]
    first_negative: Float[Tensor, "seq tok"]
    step: Float[Tensor, "seq tok"]
    raw_positive: Float[Tensor, "seq tok"]
    raw_negative: Float[Tensor, "seq tok"]
    mini_positive: Float[Tensor, "seq tok"]
    """NaN for responses in no optimizer step; the same holds for `mini_negative`."""
    mini_negative: Float[Tensor, "seq tok"]


class StepEvidence(NamedTuple):
    moved: Movement
    """From before to after the training step."""
    logp_first: Float[Tensor, "seq tok"]
    """After the first optimizer step."""
    rows: Int[Tensor, " rows"]
    """The observed responses."""
    effects: Effects
    """In the order of `rows`."""
    kappa: Float[Tensor, "seq tok"]
    """kappa = dJ/d logp of each token in the first optimizer step."""
    method: Method


@contextmanager
def observation_memory_errors() -> Iterator[None]:
    """Turn out-of-memory during an observation into a GuardError that names the settings to lower."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise GuardError(
            "observing this step needs memory for about fourteen more copies of the weights and there is not enough; "
            "set diagnose.every to 0, or diagnose.groups lower"
        ) from None


def choose_rows(credited: Credited, *, groups: int, seed: int) -> Tensor:
    """All rows of randomly chosen groups; groups with unequal rewards come before those whose rewards are all equal."""
    rollouts = credited.rollouts
    names = torch.unique(rollouts.group).tolist()
    spread = group_statistics(credited.scored.reward, rollouts.group).std > 0
    live = set(rollouts.group[spread].tolist())
    order = Random(seed).sample(names, len(names))
    chosen = sorted(order, key=lambda name: name not in live)[: groups or len(names)]
    return torch.isin(rollouts.group, torch.tensor(chosen, device=rollouts.group.device)).nonzero()[:, 0]


def _weights(policy: Policy) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in trainable_parameters(policy.model).items()}


def _minus(left: Direction, right: Direction) -> dict[str, Tensor]:
    return {name: value - right[name] for name, value in left.items()}


def _opposite(gradient: Direction) -> dict[str, Tensor]:
    """The direction of a gradient step."""
    return {name: -value for name, value in gradient.items()}


class _Sides(NamedTuple):
    positive: dict[str, Tensor]
    negative: dict[str, Tensor]


class _SideEffects(NamedTuple):
    positive: Float[Tensor, "seq tok"]
    negative: Float[Tensor, "seq tok"]


class Microscope:
    """Observes one update: created before it, called after each optimizer step, read with `evidence` at the end."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.AdamW,
        credited: Credited,
        plan: StepPlan,
        built: AggregatedObjective,
        settings: MicroscopeConfig,
    ) -> None:
        if not plan.steps:
            raise ValueError("a plan without optimizer steps leaves nothing to examine")
        self.policy, self.optimizer = policy, optimizer
        self.credited, self.plan, self.built, self.settings = credited, plan, built, settings
        model = deepcopy(policy.model)
        # A sampler is bound to the weights it was created with.
        self.before = replace(policy, model=model, sampler=None)
        self.weights = _weights(self.before)
        self.rows = choose_rows(credited, groups=settings.groups, seed=settings.seed)
        self.seen = credited.rollouts.select(self.rows)
        self.directions: dict[str, Direction] = {}
        self.logp_first: Tensor | None = None
        self.method: Method | None = None
        self._compute_gradients()

    def _compute_gradients(self) -> None:
        """Gradients by side, of each optimizer step and of the batch as one step."""
        shape, kind = self.seen.mask.shape, self.credited.old_logp
        self.mini = _SideEffects(*(torch.full(shape, torch.nan, dtype=kind.dtype, device=kind.device) for _ in range(2)))
        batch = _Sides(*({name: torch.zeros_like(value) for name, value in self.weights.items()} for _ in range(2)))
        total = sum(step.denominator for step in self.plan.steps)
        for number, step in enumerate(self.plan.steps):
            sides = self._side_gradients(number, step)
            if number == 0:
                self.first = sides
            for total_gradient, part in zip(batch, sides, strict=True):
                for name, value in part.items():
                    total_gradient[name] += step.denominator / total * value
            inside = torch.isin(self.rows, torch.tensor(step.rows, device=self.rows.device)).nonzero()[:, 0]
            if len(inside):
                found = self._predict(self.seen.select(inside), {name: _opposite(part) for name, part in sides._asdict().items()})
                self.mini.positive[inside], self.mini.negative[inside] = found["positive"], found["negative"]
        self.before.model.zero_grad(set_to_none=True)
        self.directions |= {"raw_positive": _opposite(batch.positive), "raw_negative": _opposite(batch.negative)}

    def _side_gradients(self, number: int, step: PlannedStep) -> _Sides:
        credit = self.credited.credit
        return _Sides(self._gradient(number, step, credit > 0), self._gradient(number, step, credit < 0))

    def _gradient(self, number: int, step: PlannedStep, only: Bool[Tensor, "seq tok"]) -> dict[str, Tensor]:
        self.before.model.zero_grad(set_to_none=True)
        settings, seed = self.settings, step_seed(self.settings.seed, number)
        options = ForwardOptions(temperature=settings.temperature, dtype=settings.dtype, recompute=settings.recompute)
        accumulate_gradient(self.before, self.credited, step, self.built, options, seed=seed, only=only)
        return {name: parameter.grad for name, parameter in trainable_parameters(self.before.model).items() if parameter.grad is not None}

    def _predict(self, rollouts: Rollouts, directions: Mapping[str, Direction]) -> dict[str, Tensor]:
        settings = self.settings
        found = predicted_change(
            self.before.model, rollouts, directions, temperature=settings.temperature, max_tokens=settings.max_tokens, method=self.method
        )
        self.method = found.method
        return found.change

    def after_optimizer_step(self, number: int, gradient_norm: float) -> None:
        """Record the change of the first optimizer step and the part of it from each side."""
        if number > 0:
            return
        named = trainable_parameters(self.policy.model)
        clip = clip_factor(gradient_norm, self.settings.gradient_clip)
        self.directions["first"] = _minus(_weights(self.policy), self.weights)
        for side, gradient in self.first._asdict().items():
            self.directions[f"first_{side}"] = adamw_part(self.optimizer, named, gradient, clip=clip)
        del self.first
        # In full precision even where training is not: an update is far smaller than the rounding of a bfloat16 pass.
        self.logp_first = score_rows(
            self.policy.model, self.credited.rollouts, temperature=self.settings.temperature, max_tokens=self.settings.max_tokens
        ).logp

    def evidence(self) -> StepEvidence:
        """Call after the last optimizer step."""
        assert self.logp_first is not None, "after_optimizer_step was not called for the first optimizer step"
        settings = self.settings
        self.directions["step"] = _minus(_weights(self.policy), self.weights)
        effects = Effects(**self._predict(self.seen, self.directions), mini_positive=self.mini.positive, mini_negative=self.mini.negative)
        self.directions.clear()
        moved = movement(
            self.before.model, self.policy.model, self.credited.rollouts, temperature=settings.temperature, max_tokens=settings.max_tokens
        )
        assert self.method is not None
        return StepEvidence(
            moved=moved,
            logp_first=self.logp_first,
            rows=self.rows,
            effects=effects,
            kappa=step_kappa(self.credited, self.plan.steps[0], self.built, moved.before.logp, seed=step_seed(settings.seed, 0)),
            method=self.method,
        )
