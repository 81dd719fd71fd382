"""Pairings that make no sense are refused with the reason; all others compose."""

import itertools
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tokencredit.audit import CONDITIONS
from tokencredit.audit.residual import step_kappa
from tokencredit.audit.subject import Subject, assign, plan_for
from tokencredit.config import Recipe
from tokencredit.config.compatibility import RULES
from tokencredit.config.resolve import resolve
from tokencredit.config.train import CHOICES, STAGES
from tokencredit.errors import ConfigError

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"credit": {"type": "delta"}, "objective": {"type": "gspo", "form": "sequence"}}, "averages it away; use objective.form 'token'"),
    ({"credit": {"type": "forking"}, "objective": {"type": "gmpo", "form": "sequence"}}, "averages it away; use objective.form 'token'"),
    ({"objective": {"type": "dfpo", "aggregation": "sequence-mean"}}, "one length divisor for the group"),
    ({"credit": {"type": "edit-mask"}}, "needs shape.type 'ibpo'"),
    ({"credit": {"type": "process"}}, "never reads advantage 'grpo'"),
    ({"credit": {"type": "process"}, "advantage": {"type": "dr-grpo"}, "shape": {"type": "overlong"}}, "shape 'overlong' would not enter"),
    (
        {"credit": {"type": "process"}, "advantage": {"type": "dr-grpo"}, "kl": {"beta": 0.1, "place": "reward"}},
        "kl.place 'reward' would not enter",
    ),
    ({"advantage": {"type": "c-rf"}, "shape": {"type": "ibpo"}}, "shape 'ibpo' would not enter"),
    ({"advantage": {"type": "c-rf"}, "kl": {"beta": 0.1, "place": "reward"}}, "kl.place 'reward' would not enter"),
    ({"advantage": {"type": "pass-at-k"}, "credit": {"type": "ntf"}}, "no negative side"),
    ({"advantage": {"type": "pass-at-k"}, "credit": {"type": "one-sided", "side": "negative"}}, "no negative side"),
    ({"advantage": {"type": "pass-at-k"}, "batching": {"type": "reward-balanced"}}, "nothing to balance"),
    (
        {"objective": {"type": "gspo", "form": "sequence"}, "correction": {"kind": "tis", "level": "token"}},
        "averages the weights away; use objective.form 'token' or correction.level 'sequence'",
    ),
    (
        {"credit": {"type": "forking", "divisor": "kept"}, "objective": {"type": "ppo-clip", "aggregation": "sequence-mean"}},
        "is no mean over tokens",
    ),
    ({"correction": {"kind": "mis", "cap": 1.0, "floor": 1.5}}, "correction.floor is 1.5"),
    ({"credit": {"type": "process", "budget": 3}, "advantage": {"type": "dr-grpo"}}, "no prefix could be valued"),
    ({"objective": {"type": "clip-cov", "cov_low": 5.0}}, "no covariance lies between"),
]

ACCEPTED: list[dict[str, Any]] = [
    {"credit": {"type": "uniform"}, "objective": {"type": "gspo", "form": "sequence"}},
    {"credit": {"type": "delta"}, "objective": {"type": "gspo", "form": "token"}},
    {"credit": {"type": "edit-mask"}, "shape": {"type": "ibpo", "weight": 0.0}},
    {"credit": {"type": "process"}, "advantage": {"type": "dr-grpo"}, "kl": {"beta": 0.1, "place": "loss"}},
    {"advantage": {"type": "pass-at-k"}, "credit": {"type": "one-sided", "side": "positive"}},
    {"credit": {"type": "one-sided"}, "objective": {"type": "gmpo", "form": "sequence"}},
    {"objective": {"type": "gspo", "form": "sequence"}, "correction": {"kind": "tis", "level": "sequence"}},
    {"credit": {"type": "forking", "divisor": "kept"}, "objective": {"type": "dfpo"}},
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
def test_senseless_pairings_say_why(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match="Value error") as refused:
        Recipe.model_validate(fields)
    assert reason in str(refused.value)


@pytest.mark.parametrize("fields", ACCEPTED)
def test_their_neighbours_are_accepted(fields: dict[str, Any]) -> None:
    recipe = Recipe.model_validate(fields)
    for stage, choice in fields.items():
        assert getattr(recipe, stage).model_dump().items() >= choice.items()


def test_every_rule_is_tested() -> None:
    refusals = [fields for fields, _ in REFUSED]
    told = {rule.__name__ for rule in RULES for fields in refusals if _valid_by_itself(fields) and _breaks(rule, fields)}
    assert told == {rule.__name__ for rule in RULES}


def _valid_by_itself(fields: dict[str, Any]) -> bool:
    """Every choice is fine alone; what is wrong is that they meet."""
    try:
        return all(_choice(name, given) is not None for name, given in fields.items())
    except ValidationError:
        return False


def _breaks(rule: Any, fields: dict[str, Any]) -> bool:
    from tokencredit.config.compatibility import Stages

    loose = Recipe.model_construct(**{name: _choice(name, fields.get(name)) for name in Recipe.model_fields})
    return rule(Stages(loose.shape, loose.advantage, loose.credit, loose.objective, loose.batching, loose.kl, loose.correction)) is not None


def _choice(field: str, given: dict[str, Any] | None) -> Any:
    default = Recipe.model_fields[field].default
    if given is None:
        return default
    return CHOICES[field][given["type"]].model_validate(given) if field in CHOICES else type(default).model_validate(given)


def composed(types: dict[str, str]) -> Recipe | None:
    """A recipe of these types with their defaults, or None where a rule refuses it."""
    try:
        return Recipe.model_validate({stage: {"type": name} for stage, name in types.items()})
    except ValidationError:
        return None


PAIRS = [
    {first: one, second: two} for first, second in itertools.combinations(STAGES, 2) for one in CHOICES[first] for two in CHOICES[second]
]


@pytest.mark.parametrize("types", PAIRS, ids=lambda types: "-".join(types.values()))
def test_any_two_choices_compose_or_are_refused(types: dict[str, str]) -> None:
    """Run through the stages on made-up groups: finite numbers for every token, and credit that reaches some."""
    recipe = composed(types)
    if recipe is None:
        assert {"edit-mask", "process", "pass-at-k", "c-rf"} & set(types.values())
        return
    scene = CONDITIONS["off-policy"]()
    subject = Subject("composed", recipe)
    built, assigned = subject.built(), assign(recipe, scene)
    plan = plan_for(recipe, scene, assigned.advantage, built)
    kappas = [step_kappa(scene, assigned, step, built) for step in plan.steps]
    assert all(kappa.isfinite().all() for kappa in kappas)
    assert sum(float(kappa.abs().sum()) for kappa in kappas) > 0
    for step, kappa in zip(plan.steps, kappas, strict=True):
        assert not kappa[~scene.mask[torch.tensor(step.rows)]].any()


def refusal(**fields: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        resolve([fields])
    return str(refused.value)


def test_settings_that_cannot_be_planned_say_why() -> None:
    assert "compares siblings" in refusal(recipe="fade", sampling={"group_size": 1})
    assert "batching 'stratified'" in refusal(recipe="dapo", batching={"type": "stratified"}, sampling={"group_size": 2})
    assert "only 4 prompts" in refusal(recipe="cancellation", sampling={"prompts": 4}, optimizer={"steps_per_batch": 8})
    assert "batching.method 'subsample'" in refusal(
        recipe="c-rf", batching={"type": "reward-balanced", "method": "subsample"}, sampling={"group_size": 1}
    )
    assert "credit.scope 'group'" in refusal(recipe="c-rf", credit={"type": "delta", "scope": "group"}, sampling={"group_size": 1})
    assert "there is nothing to correct" in refusal(recipe="dapo", correction={"kind": "tis"}, scoring="sampler")
    assert "looks for groups" in refusal(recipe="c-rf", filter_groups=True, sampling={"group_size": 1})
    assert resolve([{"recipe": "ntf", "sampling": {"group_size": 1, "prompts": 64}}]).sampling.group_size == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"batching": {"type": "reward-balanced", "mass": "responses"}},
            "batching: mass is 'responses' but is read only when method",
        ),
        (
            {"objective": {"type": "ppo-clip", "constant_length": 9}},
            "objective: constant_length is 9 but is read only when",
        ),
        ({"objective": {"type": "dfpo", "floor": True}}, "floor is True but is read only when transform is 'orthogonal'"),
        ({"objective": {"type": "sign-blind-clip", "clipping": "none", "clip_low": 0.1}}, "clip_low is 0.1 but is read only when clipping"),
        ({"credit": {"type": "delta", "top_k": 5}}, "top_k is 5 but is read only when proxy is 'hidden-gradient'"),
        ({"credit": {"type": "delta", "shards": 5}}, "shards is 5 but is read only when scope is 'shard'"),
        (
            {"correction": {"level": "sequence"}},
            "correction: level is 'sequence' but is read only when kind is 'tis' or 'mis'",
        ),
    ],
)
def test_a_number_nobody_would_read_is_refused(fields: dict[str, Any], words: str) -> None:
    assert words in refusal(recipe="dapo", **fields)


def test_recipes_that_ask_for_revisions_bring_a_base_that_can() -> None:
    assert resolve([{"recipe": "ibpo"}]).model == "steps-revise"
    assert resolve([{"recipe": "grpo", "shape": {"type": "ibpo"}}]).model == "steps-revise"
    assert resolve([{"recipe": "ibpo", "model": "steps-shift"}]).model == "steps-shift"
    assert resolve([{"recipe": "ibpo", "shape": {"type": "none"}}]).model == "steps-shift"
