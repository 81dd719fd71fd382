"""What a plan's optimizer steps do to every token: predicted from the weights before, measured while training takes them.

A copy of the policy is made before the first optimizer step and all gradients for the prediction are taken there. The policy
that is trained and its optimizer are only read, so a run with the microscope on and one with it off end with the same bits.

AdamW's change of the weights as a sum of parts: it is linear in the gradient once its divisor is known.

change = -rate / bias1 (1 - beta1) clip (g+ + g-) / (sqrt(v / bias2) + eps)   +   what momentum and decay add
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
    """What torch's clip_grad_norm_ multiplies a gradient of this norm by."""
    return min(1.0, gradient_clip / (norm + 1e-6))


@torch.no_grad()
def adamw_part(optimizer: torch.optim.AdamW, named: Mapping[str, Tensor], gradient: Direction, *, clip: float) -> dict[str, Tensor]:
    """The part of the step just taken that came from `gradient`; `named` are the optimizer's own parameters."""
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
    """How the microscope looks; none of it changes what it looks at."""

    temperature: float
    max_tokens: int
    gradient_clip: float
    dtype: str
    seed: int
    """The one that training gives `run_plan` for this batch."""
    groups: int
    """Groups whose tokens' change is predicted; 0 takes all."""
    recompute: bool = False
    """As in `accumulate_gradient`."""


class Effects(NamedTuple):
    """First-order change of the log-probs of the responses looked at, by where it comes from."""

    first: Float[Tensor, "seq tok"]
    first_positive: Float[Tensor, "seq tok"]
    first_negative: Float[Tensor, "seq tok"]
    step: Float[Tensor, "seq tok"]
    raw_positive: Float[Tensor, "seq tok"]
    raw_negative: Float[Tensor, "seq tok"]
    mini_positive: Float[Tensor, "seq tok"]
    """NaN for responses that are in no optimizer step, as `mini_negative`."""
    mini_negative: Float[Tensor, "seq tok"]


class StepEvidence(NamedTuple):
    moved: Movement
    """From before to after the whole step."""
    logp_first: Float[Tensor, "seq tok"]
    """After the first optimizer step."""
    looked_at: Int[Tensor, " rows"]
    effects: Effects
    """Of the responses looked at, in the order of `looked_at`."""
    kappa: Float[Tensor, "seq tok"]
    """What the first optimizer step's objective gives each token."""
    method: Method


@contextmanager
def memory_for_a_look() -> Iterator[None]:
    """Running out of memory here is for the user to decide about, not a fault of training."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise GuardError(
            "looking at this step needs memory for about fourteen more copies of the weights and there is not enough; "
            "set diagnose.every to 0, or diagnose.groups lower"
        ) from None


def choose_rows(credited: Credited, *, groups: int, seed: int) -> Tensor:
    """Rows of whole groups, drawn at random; groups that can teach something before those whose rewards are all alike."""
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
    """The way a gradient step goes."""
    return {name: -value for name, value in gradient.items()}


class _Sides(NamedTuple):
    positive: dict[str, Tensor]
    negative: dict[str, Tensor]


class _SideEffects(NamedTuple):
    positive: Float[Tensor, "seq tok"]
    negative: Float[Tensor, "seq tok"]


class Microscope:
    """Made before the update, told of each optimizer step (`watch` of `run_plan`), asked for its evidence afterwards."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.AdamW,
        credited: Credited,
        plan: StepPlan,
        built: AggregatedObjective,
        lens: MicroscopeConfig,
    ) -> None:
        if not plan.steps:
            raise ValueError("a plan without optimizer steps leaves nothing to examine")
        self.policy, self.optimizer = policy, optimizer
        self.credited, self.plan, self.built, self.lens = credited, plan, built, lens
        model = deepcopy(policy.model)
        # A sampler draws with the weights it was made for.
        self.before = replace(policy, model=model, sampler=None)
        self.weights = _weights(self.before)
        self.looked_at = choose_rows(credited, groups=lens.groups, seed=lens.seed)
        self.seen = credited.rollouts.select(self.looked_at)
        self.directions: dict[str, Direction] = {}
        self.logp_first: Tensor | None = None
        self.method: Method | None = None
        self._look_at_gradients()

    def _look_at_gradients(self) -> None:
        """Of every optimizer step by side, and of the whole batch taken at once."""
        shape, kind = self.seen.mask.shape, self.credited.old_logp
        self.mini = _SideEffects(*(torch.full(shape, torch.nan, dtype=kind.dtype, device=kind.device) for _ in range(2)))
        batch = _Sides(*({name: torch.zeros_like(value) for name, value in self.weights.items()} for _ in range(2)))
        total = sum(step.denominator for step in self.plan.steps)
        for number, step in enumerate(self.plan.steps):
            sides = self._side_gradients(number, step)
            if number == 0:
                self.first = sides
            for whole, part in zip(batch, sides, strict=True):
                for name, value in part.items():
                    whole[name] += step.denominator / total * value
            inside = torch.isin(self.looked_at, torch.tensor(step.rows, device=self.looked_at.device)).nonzero()[:, 0]
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
        lens, seed = self.lens, step_seed(self.lens.seed, number)
        options = ForwardOptions(temperature=lens.temperature, dtype=lens.dtype, recompute=lens.recompute)
        accumulate_gradient(self.before, self.credited, step, self.built, options, seed=seed, only=only)
        return {name: parameter.grad for name, parameter in trainable_parameters(self.before.model).items() if parameter.grad is not None}

    def _predict(self, rollouts: Rollouts, directions: Mapping[str, Direction]) -> dict[str, Tensor]:
        lens = self.lens
        found = predicted_change(
            self.before.model, rollouts, directions, temperature=lens.temperature, max_tokens=lens.max_tokens, method=self.method
        )
        self.method = found.method
        return found.change

    def watch(self, number: int, gradient_norm: float) -> None:
        """After the first optimizer step: what it changed, and which part of that came from each side."""
        if number > 0:
            return
        named = trainable_parameters(self.policy.model)
        clip = clip_factor(gradient_norm, self.lens.gradient_clip)
        self.directions["first"] = _minus(_weights(self.policy), self.weights)
        for side, gradient in self.first._asdict().items():
            self.directions[f"first_{side}"] = adamw_part(self.optimizer, named, gradient, clip=clip)
        del self.first
        # In full precision whatever training runs in: an update is far smaller than the rounding of a bfloat16 pass.
        self.logp_first = score_rows(
            self.policy.model, self.credited.rollouts, temperature=self.lens.temperature, max_tokens=self.lens.max_tokens
        ).logp

    def evidence(self) -> StepEvidence:
        """After the last optimizer step."""
        assert self.logp_first is not None, "the microscope was not told of the first optimizer step"
        lens = self.lens
        self.directions["step"] = _minus(_weights(self.policy), self.weights)
        effects = Effects(**self._predict(self.seen, self.directions), mini_positive=self.mini.positive, mini_negative=self.mini.negative)
        self.directions.clear()
        moved = movement(
            self.before.model, self.policy.model, self.credited.rollouts, temperature=lens.temperature, max_tokens=lens.max_tokens
        )
        assert self.method is not None
        return StepEvidence(
            moved=moved,
            logp_first=self.logp_first,
            looked_at=self.looked_at,
            effects=effects,
            kappa=step_kappa(self.credited, self.plan.steps[0], self.built, moved.before.logp, seed=step_seed(lens.seed, 0)),
            method=self.method,
        )
