"""Credit reads the evidence it declares and no other: what an engine need not gather may be anything."""

from collections.abc import Mapping
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from engine.crediting_cases import GROUP, WIDTH, Case, CreditedBatch, credit_case, crediting_of, made_up_case
from surface.methods import stored
from tokencredit.advantage import ADVANTAGES, AdvantageInputs
from tokencredit.config.recipes import RECIPES
from tokencredit.config.train import METHODS
from tokencredit.credit import CREDITS, CreditInputs, CreditMethod, CreditOutcome
from tokencredit.pipeline.build import needed_evidence, sampled_evidence
from tokencredit.pipeline.credit import MethodState
from tokencredit.shape import SHAPES, ShapeInputs
from tokencredit.types import Evidence

FIELDS: dict[Evidence, str] = {
    "logp": "logp",
    "entropy": "entropy",
    "hidden": "hidden",
    "revisions": "edited",
    "prefix-values": "prefix_value",
}
"""Where credit finds each; greedy responses are for advantages."""
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "delta": (
        {},
        {"proxy": "row", "scope": "group"},
        {"score": "own-side"},
        {"coefficient_map": "symmetric", "temperature": "first-batch"},
    ),
    "forking": ({}, {"divisor": "kept"}),
    "one-sided": ({}, {"side": "negative"}),
}
Methods = Mapping[str, CreditMethod]
DECLARED: Methods = {name: CreditMethod(CREDITS[name], frozenset(choice.needs)) for name, choice in METHODS["credit"].items()}


def credit_inputs(seed: int) -> CreditInputs:
    case = made_up_case(seed)
    rollouts, draw = case.scored.rollouts, torch.Generator().manual_seed(seed + 9)
    shape = rollouts.mask.shape
    value = torch.rand(shape, generator=draw, dtype=torch.float64)
    return CreditInputs(
        advantage=torch.randn(shape[0], generator=draw, dtype=torch.float64).where(case.scored.graded, 0.0),
        mask=rollouts.loss_mask,
        group=rollouts.group,
        tokens=rollouts.tokens,
        logp=case.evidence.logp,
        entropy=case.evidence.entropy,
        seed=seed,
        temperature=0.7,
        hidden=case.evidence.hidden,
        head=case.head,
        score=case.scored.score,
        end_tokens=(0,),
        edited=torch.rand(shape, generator=draw) < 0.5,
        prefix_value=value.where(value < 0.6, torch.nan),
    )


def otherwise(inputs: CreditInputs, field: str, seed: int) -> list[CreditInputs]:
    """Other values of one field, of its own kind; and none at all where that can be said."""
    value: Tensor = getattr(inputs, field)
    draw = torch.Generator().manual_seed(seed + 77)
    if value.dtype == torch.bool:
        return [inputs._replace(**{field: ~value}), inputs._replace(**{field: None})]
    other = (
        -torch.rand(value.shape, generator=draw, dtype=value.dtype)
        if field == "logp"
        else torch.rand(value.shape, generator=draw).to(value)
    )
    gone = torch.full_like(value, torch.nan) if field in ("logp", "entropy") else None
    return [inputs._replace(**{field: other}), inputs._replace(**{field: gone})]


def same(one: CreditOutcome, other: CreditOutcome) -> bool:
    if one.coefficient is not None and other.coefficient is not None and not torch.equal(one.coefficient, other.coefficient):
        return False
    return torch.equal(one.credit, other.credit) and one.state == other.state


def credit_depends_on_nothing_undeclared(methods: Methods) -> None:
    for name, method in methods.items():
        for need in FIELDS.keys() - method.needs:
            for seed in range(3):
                inputs = credit_inputs(seed)
                for knobs in VARIANTS.get(name, ({},)):
                    expected = method.assign(inputs, {}, **knobs)
                    for changed in otherwise(inputs, FIELDS[need], seed):
                        assert same(method.assign(changed, {}, **knobs), expected), f"{name} reads {need}, which it does not declare"


def credit_depends_on_everything_declared(methods: Methods) -> None:
    for name, method in methods.items():
        for need in method.needs:
            inputs = credit_inputs(0)
            changed = otherwise(inputs, FIELDS[need], 0)[0]
            assert not same(method.assign(changed, {}), method.assign(inputs, {})), f"{name} declares {need} and does not read it"


LAWS = (credit_depends_on_nothing_undeclared, credit_depends_on_everything_declared)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_every_credit_obeys(law: Any) -> None:
    assert DECLARED.keys() == CREDITS.keys()
    law(DECLARED)


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "need"), [("delta", "logp"), ("ntf", "logp"), ("forking", "entropy")], ids=lambda part: str(part))
def test_evidence_that_is_not_declared_is_noticed(name: str, need: Evidence) -> None:
    silent = DECLARED[name]._replace(needs=DECLARED[name].needs - {need})
    with pytest.raises(AssertionError, match=f"{name} reads {need}"):
        credit_depends_on_nothing_undeclared({name: silent})


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "need"), [("uniform", "logp"), ("ktae", "entropy"), ("ntf", "hidden"), ("forking", "revisions")])
def test_evidence_that_is_declared_in_vain_is_noticed(name: str, need: Evidence) -> None:
    greedy = DECLARED[name]._replace(needs=DECLARED[name].needs | {need})
    with pytest.raises(AssertionError, match=f"{name} declares {need}"):
        credit_depends_on_everything_declared({name: greedy})


def test_of_all_advantages_fade_alone_reads_entropy_and_remax_alone_greedy_scores() -> None:
    case = made_up_case()
    rollouts = case.scored.rollouts
    inputs = AdvantageInputs(
        case.scored.reward,
        rollouts.group,
        length=rollouts.loss_mask.sum(-1),
        score=case.scored.score,
        entropy=0.9,
        greedy_score=torch.linspace(0, 1, len(GROUP), dtype=torch.float64),
    )
    for name, advantage in ADVANTAGES.items():
        expected = advantage(inputs, {})
        for field, need in (("entropy", "entropy"), ("greedy_score", "greedy-scores")):
            if need not in METHODS["advantage"][name].needs:
                got = advantage(inputs._replace(**{field: None}), {})
                assert torch.equal(got.advantage, expected.advantage), f"{name} reads {field}"
                assert got.state == expected.state
    low_entropy = {"solve_rate": 0.5, "entropy": 0.3, "initial_entropy": 2.0}
    moved = [ADVANTAGES["fade"](inputs._replace(entropy=entropy), low_entropy).advantage for entropy in (0.1, 9.0)]
    assert not torch.equal(*moved)
    greedy = [ADVANTAGES["remax"](inputs._replace(greedy_score=inputs.score.nan_to_num() * by), {}).advantage for by in (0.2, 0.7)]
    assert not torch.equal(*greedy)
    declared = {name: set(choice.needs) for name, choice in METHODS["advantage"].items() if choice.needs}
    assert declared == {"fade": {"entropy"}, "remax": {"greedy-scores"}}


def test_of_all_shapes_the_repair_bonus_alone_needs_revisions() -> None:
    score = made_up_case().scored.score
    inputs = ShapeInputs(score, torch.full((len(GROUP),), 3), WIDTH, None)
    assert {name for name, shape in METHODS["shape"].items() if shape.needs} == {"ibpo"}
    for name, knobs in {"none": {}, "overlong": {"buffer": 0.9, "factor": 1.0}}.items():
        one, other = (SHAPES[name](inputs._replace(repaired=repaired), **knobs) for repaired in (None, torch.ones_like(score)))
        assert torch.equal(one, other)
    assert SHAPES.keys() == {"none", "overlong", "ibpo"}


# --- whole recipes, as engines ask for them


def credited(recipe: str, case: Case) -> CreditedBatch:
    """The third batch of three, so that what a controller has remembered shows."""
    made, state = crediting_of(recipe), MethodState()
    for _ in range(3):
        result = credit_case(made, case, state)
        state = result.state
    return result


@pytest.mark.parametrize("name", [name for name, entry in RECIPES.items() if not sampled_evidence(entry.recipe)])
def test_what_a_recipe_does_not_need_may_be_anything(name: str) -> None:
    case, needs = made_up_case(), needed_evidence(RECIPES[name].recipe)
    expected = credited(name, case)
    for field in {"logp", "entropy"} - needs:
        got = credited(name, case._replace(evidence=case.evidence._replace(**{field: torch.zeros_like(case.evidence.logp)})))
        assert torch.equal(got.credited.credit, expected.credited.credit)
        assert got.state == expected.state


def test_what_every_recipe_needs() -> None:
    needs = {name: sorted(needed_evidence(entry.recipe)) for name, entry in RECIPES.items()}
    assert needs == {name: found["needs"] for name, found in stored()["recipes"].items()}
    found_in_a_pass = {"logp", "entropy", "hidden"}
    for entry in RECIPES.values():
        assert sampled_evidence(entry.recipe) == needed_evidence(entry.recipe) - found_in_a_pass
    assert set(get_args(Evidence)) == FIELDS.keys() | {"greedy-scores"}
