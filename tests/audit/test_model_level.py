"""The audit against a real model: the parameter gradient of a shared token vanishes exactly when the audit says so."""

from dataclasses import replace

import pytest
import torch

from tiny import tiny_policy
from tokencredit.audit.residual import ZERO, residual, step_kappa
from tokencredit.audit.scene import Scene, plain_scene
from tokencredit.audit.subject import Subject, assign, plan_for
from tokencredit.config import QueryPreservedBatching
from tokencredit.config.recipe import varied
from tokencredit.config.recipes import RECIPES
from tokencredit.forward.padded import response_logits
from tokencredit.kernels import token_logp

PROMPT = (3, 5, 2)
SHARED_PREFIX = 3
LENGTH = {"even": (7, 7), "uneven": (7, 5)}
CASES = [
    ("dapo", "even", 0.0), ("dapo", "uneven", 0.0), ("dapo", "even", 0.02), ("dapo", "even", 2.0), ("grpo", "even", 0.02),
    ("grpo", "uneven", 0.0), ("gspo", "even", 0.0), ("gspo", "even", 0.02), ("gmpo", "even", 0.02), ("cispo", "even", 2.0),
    ("sapo", "even", 0.0), ("sapo", "even", 0.5), ("dfpo", "even", 0.02), ("dfpo", "uneven", 0.5), ("dfpo-orthogonal", "uneven", 0.5),
    ("grpo-fix", "even", 2.0), ("grpo-fix", "uneven", 0.02), ("opo", "even", 0.0), ("opo", "uneven", 0.0), ("asym", "even", 0.0),
    ("fade", "even", 0.02), ("positive-only", "even", 0.0), ("pass-at-k", "even", 0.0), ("fipo", "even", 0.02), ("ntf", "even", 0.0),
]  # fmt: skip


def two_responses(policy, lengths: tuple[int, int], drift: float) -> Scene:
    """One prompt, a right and a wrong response with the same first tokens; the model moved by `drift` since they were sampled."""
    generator = torch.Generator().manual_seed(4)
    vocabulary = policy.model.config.vocab_size
    tokens = torch.randint(0, vocabulary, (2, max(lengths)), generator=generator)
    tokens[1, :SHARED_PREFIX] = tokens[0, :SHARED_PREFIX]

    def score() -> torch.Tensor:
        with torch.no_grad():
            return token_logp(response_logits(policy.model, [PROMPT] * 2, tokens).logits, tokens, temperature=1.0)

    old_logp = score()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += drift * 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    logp = score()
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    shared = (torch.arange(max(lengths)) < SHARED_PREFIX).expand(2, -1)
    template = plain_scene()
    width = max(lengths)
    rows = {name: getattr(template, name)[:2, :width] for name in ("entropy", "hidden", "edited", "prefix_value")}
    return replace(
        template, **rows, score=torch.tensor([1.0, 0.0]).double(), group=torch.zeros(2, dtype=torch.long), tokens=tokens, mask=mask,
        shared=shared, behavior_logp=old_logp, old_logp=old_logp, logp=logp, repaired=torch.zeros(2).double(),
        greedy_score=torch.zeros(2).double(),
    )  # fmt: skip


def shared_gradient(policy, scene: Scene, kappa: torch.Tensor) -> torch.Tensor:
    """The parameter gradient that the shared tokens alone ask for."""
    policy.model.zero_grad()
    logits = response_logits(policy.model, [PROMPT] * 2, scene.tokens).logits
    token_logp(logits, scene.tokens, temperature=1.0).backward(kappa.where(scene.shared, 0.0))
    return torch.cat([parameter.grad.flatten() for parameter in policy.model.parameters() if parameter.grad is not None])


@pytest.mark.parametrize(("recipe", "lengths", "drift"), CASES)
def test_the_gradient_of_shared_tokens_vanishes_when_the_audit_says_so(recipe: str, lengths: str, drift: float) -> None:
    policy = tiny_policy(dtype=torch.float64)
    scene = two_responses(policy, LENGTH[lengths], drift)
    subject = Subject(recipe, varied(RECIPES[recipe].recipe, batching=QueryPreservedBatching()))
    built, assigned = subject.built(), assign(subject.recipe, scene)
    plan = plan_for(subject.recipe, scene, assigned.advantage, built)
    (step,) = plan.steps
    order = torch.tensor(step.rows).argsort()
    kappa = step_kappa(scene, assigned, step, built)[order]
    gradient = float(shared_gradient(policy, scene, kappa).norm())
    one_sided = float(shared_gradient(policy, scene, kappa * torch.tensor([[1.0], [0.0]])).norm())
    other_side = float(shared_gradient(policy, scene, kappa * torch.tensor([[0.0], [1.0]])).norm())
    size = max(one_sided, other_side)
    found = residual(scene, assigned, plan, built)
    if found is None:
        assert size == 0
    elif found <= ZERO:
        assert gradient <= 1e-12 * size
        assert min(one_sided, other_side) > 0
    else:
        assert gradient > 1e-7 * size


def test_the_cases_hold_both_answers() -> None:
    """Otherwise the test above could pass by never being asked."""
    said = set()
    for recipe, lengths, drift in CASES:
        policy = tiny_policy(dtype=torch.float64)
        scene = two_responses(policy, LENGTH[lengths], drift)
        subject = Subject(recipe, varied(RECIPES[recipe].recipe, batching=QueryPreservedBatching()))
        built, assigned = subject.built(), assign(subject.recipe, scene)
        found = residual(scene, assigned, plan_for(subject.recipe, scene, assigned.advantage, built), built)
        said.add((found or 0.0) <= ZERO)
    assert said == {True, False}
