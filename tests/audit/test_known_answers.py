"""What the audit must find: answers that follow from the mathematics of each objective."""

import pytest

from tokencredit.audit import CONDITIONS, audit_recipe
from tokencredit.audit.residual import ZERO
from tokencredit.config import (
    AsymAdvantage,
    Correction,
    DfpoObjective,
    FadeAdvantage,
    GspoObjective,
    Kl,
    OpoAdvantage,
    PolicyGradientObjective,
    PowerAdvantage,
    PpoClipObjective,
    QueryPreservedBatching,
    Recipe,
    RewardBalancedBatching,
    SapoObjective,
    SignBlindClipObjective,
    StratifiedBatching,
)
from tokencredit.config.recipe import varied
from tokencredit.config.recipes import RECIPES

LINEAR = Recipe(objective=PolicyGradientObjective(), batching=QueryPreservedBatching())
"""Token-factorised, one divisor, no clip, centred advantages, whole groups."""

ANSWERS = [
    # recipe, condition, causes (none: it cancels)
    ("grpo", "on-policy", ()),
    ("grpo", "off-policy", ()),
    ("grpo", "uneven lengths", ("divisor",)),
    ("grpo", "clipping", ("clip",)),
    ("grpo", "split groups", ("cut",)),
    ("grpo", "dead groups", ()),
    ("dr-grpo", "uneven lengths", ()),
    ("rloo", "uneven lengths", ()),
    ("dapo", "uneven lengths", ()),
    ("dapo", "clipping", ("clip",)),
    ("gspo", "on-policy", ()),
    ("gspo", "off-policy", ("ratio", "clip")),
    ("gspo", "uneven lengths", ("divisor",)),
    ("gmpo", "off-policy", ("ratio",)),
    ("cispo", "off-policy", ()),
    ("cispo", "clipping", ()),
    ("cispo", "uneven lengths", ()),
    ("sapo", "on-policy", ()),
    ("sapo", "off-policy", ("clip",)),
    ("fipo", "on-policy", ()),
    ("fipo", "off-policy", ("ratio",)),
    ("opo", "on-policy", ()),
    ("opo", "uneven lengths", ("advantage",)),
    ("reinforce++", "on-policy", ("advantage",)),
    ("reinforce++-baseline", "uneven lengths", ("advantage",)),
    ("pass-at-k", "on-policy", ("advantage",)),
    ("remax", "on-policy", ("advantage",)),
    ("fade", "on-policy", ()),
    ("asym", "on-policy", ("advantage",)),
    ("delta", "on-policy", ()),
    ("delta", "unequal coefficients", ("coefficient",)),
    ("dapo", "unequal coefficients", ()),
    ("random-lambda", "on-policy", ("coefficient",)),
    ("positive-only", "on-policy", ("coefficient",)),
    ("ibpo", "on-policy", ()),
    ("ibpo-mask", "on-policy", ("coefficient",)),
    ("ntf", "on-policy", ("advantage", "coefficient")),
    ("forking-tokens", "on-policy", ()),
    ("ktae", "on-policy", ()),
    ("cancellation", "split groups", ()),
    ("cancellation", "clipping", ("clip",)),
    *[(recipe, condition, ()) for recipe in ("grpo-fix", "dfpo", "dfpo-orthogonal") for condition in CONDITIONS],
]


@pytest.mark.parametrize(("recipe", "condition", "causes"), ANSWERS)
def test_known_answers(recipe: str, condition: str, causes: tuple[str, ...]) -> None:
    cell = audit_recipe(RECIPES[recipe].recipe, conditions=[condition])[condition]
    assert cell.causes == causes
    assert cell.cancels is (not causes)
    assert (cell.residual or 0.0) <= 1 + 1e-12


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_linear_objective_cancels_everywhere(condition: str, seed: int) -> None:
    cell = audit_recipe(LINEAR, conditions=[condition], seed=seed)[condition]
    assert cell.residual is not None
    assert cell.residual <= 1e-12


def residual_of(recipe: Recipe, condition: str, seed: int = 0) -> float:
    found = audit_recipe(recipe, conditions=[condition], seed=seed)[condition].residual
    assert found is not None
    return found


@pytest.mark.parametrize("widths", [(0.2, 0.2), (0.2, 0.28)])
def test_the_sign_dependent_clip_breaks_with_equal_and_with_unequal_widths(widths: tuple[float, float]) -> None:
    clipped = Recipe(objective=PpoClipObjective(clip_low=widths[0], clip_high=widths[1]))
    blind = Recipe(objective=SignBlindClipObjective(clip_low=widths[0], clip_high=widths[1]))
    assert residual_of(clipped, "clipping") > 0.1
    assert residual_of(blind, "clipping") <= ZERO
    assert residual_of(clipped, "off-policy") <= ZERO


def test_gspo_breaks_by_its_ratio_even_without_a_clip() -> None:
    unclipped = Recipe(objective=GspoObjective(clip_low=1.0, clip_high=100.0))
    assert audit_recipe(unclipped, conditions=["off-policy"])["off-policy"].causes == ("ratio",)


def test_fade_breaks_exactly_when_delta_is_not_one() -> None:
    # The scenes' mean entropy lies near 0.9 nats: a target of 0.5 leaves delta at 1, a target of 1.5 brings it below.
    assert residual_of(Recipe(advantage=FadeAdvantage(target_entropy=0.5)), "on-policy") <= ZERO
    assert audit_recipe(Recipe(advantage=FadeAdvantage(target_entropy=1.5)), conditions=["on-policy"])["on-policy"].causes == ("advantage",)
    assert residual_of(Recipe(advantage=PowerAdvantage(alpha=3.0)), "on-policy") <= ZERO
    assert residual_of(Recipe(advantage=AsymAdvantage(delta=1.0)), "on-policy") <= ZERO


def test_sapo_breaks_exactly_when_its_temperatures_differ() -> None:
    token_mean = SapoObjective(tau_positive=1.0, tau_negative=1.0, aggregation="token-mean")
    assert residual_of(Recipe(objective=token_mean), "off-policy") <= ZERO
    assert residual_of(Recipe(objective=token_mean.model_copy(update={"tau_negative": 1.05})), "off-policy") > ZERO


def test_a_dfpo_weight_left_as_it_is_does_not_cancel() -> None:
    assert audit_recipe(Recipe(objective=DfpoObjective(transform="none")), conditions=["off-policy"])["off-policy"].causes == ("ratio",)
    for transform in ("min-replace", "orthogonal"):
        for weight in ("mean", "product"):
            for fold in (False, True):
                objective = DfpoObjective(transform=transform, weight=weight, fold_length=fold)
                assert residual_of(Recipe(objective=objective), "off-policy") <= ZERO
                assert residual_of(Recipe(objective=objective), "uneven lengths") <= ZERO


def test_only_whole_groups_survive_a_cut() -> None:
    def after_cut(batching: object) -> float:
        return residual_of(varied(LINEAR, batching=batching), "split groups")

    assert after_cut(QueryPreservedBatching()) <= ZERO
    assert after_cut(RewardBalancedBatching(method="assign")) <= ZERO
    assert after_cut(RewardBalancedBatching(keep_queries=False)) > 0.1
    assert after_cut(StratifiedBatching()) > 0.1


def test_two_causes_are_both_named() -> None:
    both = Recipe(advantage=OpoAdvantage(), objective=PpoClipObjective(aggregation="sequence-mean"))
    assert audit_recipe(both, conditions=["uneven lengths"])["uneven lengths"].causes == ("advantage", "divisor")


def test_a_kl_term_in_the_loss_is_named_a_penalty() -> None:
    assert audit_recipe(varied(LINEAR, kl=Kl(beta=0.1)), conditions=["on-policy"])["on-policy"].causes == ("penalty",)


@pytest.mark.parametrize(("level", "causes"), [("token", ()), ("sequence", ("ratio",))])
def test_a_correction_per_response_differs_between_siblings(level: str, causes: tuple[str, ...]) -> None:
    for kind in ("tis", "mis"):
        corrected = varied(LINEAR, correction=Correction(kind=kind, level=level, cap=1.5))
        assert audit_recipe(corrected, conditions=["off-policy"])["off-policy"].causes == causes


@pytest.mark.parametrize("method", ["subsample", "reweight"])
def test_balancing_by_scale_or_omission_is_named(method: str) -> None:
    balanced = varied(LINEAR, batching=RewardBalancedBatching(method=method))
    assert audit_recipe(balanced, conditions=["uneven lengths"])["uneven lengths"].causes == ("balance",)
    assert residual_of(varied(LINEAR, batching=RewardBalancedBatching(method="assign")), "uneven lengths") <= ZERO


def test_an_unknown_condition_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match="did you mean 'on-policy'"):
        audit_recipe(LINEAR, conditions=["onpolicy"])


def test_another_seed_is_another_batch_and_another_draw() -> None:
    drawn = [residual_of(RECIPES["random-lambda"].recipe, "on-policy", seed) for seed in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1]
    cuts = [residual_of(RECIPES["dapo"].recipe, "split groups", seed) for seed in range(4)]
    assert len(set(cuts)) > 1


def test_nothing_sent_is_silent_and_never_zero() -> None:
    cell = audit_recipe(RECIPES["vineppo"].recipe, conditions=["on-policy"])["on-policy"]
    assert cell.residual is None
    assert cell.silent
    assert not cell.cancels
    assert cell.causes == ()
