"""Combinations of methods that are refused: one rule each, which reads the properties that the methods declare."""

from collections.abc import Callable
from typing import NamedTuple

from tokencredit.config.advantage import AdvantageChoice
from tokencredit.config.batching import BatchingChoice
from tokencredit.config.credit import CreditChoice
from tokencredit.config.objective import ObjectiveChoice
from tokencredit.config.shape import Correction, Kl, ShapeChoice


class Stages(NamedTuple):
    shape: ShapeChoice
    advantage: AdvantageChoice
    credit: CreditChoice
    objective: ObjectiveChoice
    batching: BatchingChoice
    kl: Kl
    correction: Correction


def _one_ratio_averages_tokens(stages: Stages) -> str | None:
    credit, correction = stages.credit, stages.correction
    if not stages.objective.one_ratio_per_response:
        return None
    if credit.differs_within_response:
        return (
            f"objective.form is 'sequence' but {credit.label} differs between tokens: one ratio per response averages it away; "
            "use objective.form 'token'"
        )
    if correction.enabled and correction.level == "token":
        return (
            "objective.form is 'sequence' but correction.level 'token' weighs tokens: one ratio per response averages the weights away; "
            "use objective.form 'token' or correction.level 'sequence'"
        )
    return None


def _objective_needs_one_divisor(stages: Stages) -> str | None:
    objective = stages.objective
    if objective.needs_one_divisor is None or objective.aggregation != "sequence-mean":
        return None
    return (
        f"objective.aggregation is 'sequence-mean' but {objective.label} {objective.needs_one_divisor}; "
        "use 'token-mean' or 'constant' (objective.fold_length folds 1/T_i into the weight)"
    )


def _credit_needs_revisions(stages: Stages) -> str | None:
    if "revisions" not in stages.credit.needs or "revisions" in stages.shape.needs:
        return None
    return f"{stages.credit.label} needs shape.type 'ibpo', which samples the revisions (shape.weight 0 leaves the reward alone)"


def _credit_replaces_the_advantage(stages: Stages) -> str | None:
    credit, advantage = stages.credit, stages.advantage
    if credit.sums_to is None or advantage.type == credit.sums_to:
        return None
    return (
        f"{credit.label} is made of values and never reads {advantage.label}; "
        f"use advantage.type {credit.sums_to!r}, which a response's credit then sums to"
    )


def _score_is_never_shaped(stages: Stages) -> str | None:
    for choice in (stages.credit, stages.advantage):
        if choice.reads_score is None:
            continue
        if stages.shape.changes_reward:
            return f"{choice.label} {choice.reads_score}, which {stages.shape.label} would not enter; use shape.type 'none'"
        if stages.kl.beta > 0 and stages.kl.place == "reward":
            return f"{choice.label} {choice.reads_score}, which kl.place 'reward' would not enter; use kl.place 'loss'"
    return None


def _negative_side_is_missing(stages: Stages) -> str | None:
    if not stages.advantage.never_negative:
        return None
    for choice in (stages.credit, stages.batching):
        if (lack := choice.needs_negative_side) is not None:
            return f"{stages.advantage.label} is never negative, so {choice.label} {lack}"
    return None


def _kept_divisor_needs_a_token_mean(stages: Stages) -> str | None:
    objective = stages.objective
    if not stages.credit.averages_over_kept_tokens or objective.aggregation == "token-mean":
        return None
    return (
        f"credit.divisor 'kept' averages over the kept tokens, but objective.aggregation {objective.aggregation!r} is no mean over "
        "tokens; use 'token-mean' or credit.divisor 'all'"
    )


RULES: tuple[Callable[[Stages], str | None], ...] = (
    _one_ratio_averages_tokens,
    _objective_needs_one_divisor,
    _credit_needs_revisions,
    _credit_replaces_the_advantage,
    _score_is_never_shaped,
    _negative_side_is_missing,
    _kept_divisor_needs_a_token_mean,
)


def incompatibility(stages: Stages) -> str | None:
    """Why a combination is refused, or None."""
    return next((reason for rule in RULES if (reason := rule(stages))), None)
