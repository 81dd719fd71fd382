"""Pairings that can be written down but make no sense: one rule each, with the reason."""

from collections.abc import Callable
from typing import NamedTuple

from tokencredit.config.advantage import AdvantageChoice
from tokencredit.config.batching import BatchingChoice
from tokencredit.config.credit import CreditChoice
from tokencredit.config.objective import GmpoObjective, GspoObjective, ObjectiveChoice
from tokencredit.config.shape import Correction, Kl, ShapeChoice


class Stages(NamedTuple):
    shape: ShapeChoice
    advantage: AdvantageChoice
    credit: CreditChoice
    objective: ObjectiveChoice
    batching: BatchingChoice
    kl: Kl
    correction: Correction


def _sequence_form_averages(stages: Stages) -> str | None:
    objective, credit = stages.objective, stages.credit
    if not isinstance(objective, GspoObjective | GmpoObjective) or objective.form != "sequence":
        return None
    if credit.differs_within_response:
        return (
            f"objective.form is 'sequence' but credit {credit.type!r} differs between tokens: one ratio per response averages it away; "
            "use objective.form 'token'"
        )
    if stages.correction.kind != "none" and stages.correction.level == "token":
        return (
            "objective.form is 'sequence' but correction.level 'token' weighs tokens: one ratio per response averages the weights away; "
            "use objective.form 'token' or correction.level 'sequence'"
        )
    return None


def _dfpo_needs_one_divisor(stages: Stages) -> str | None:
    if stages.objective.type == "dfpo" and stages.objective.aggregation == "sequence-mean":
        return (
            "objective.aggregation is 'sequence-mean' but dfpo cancels only with one length divisor for the group; "
            "use 'token-mean' or 'constant' (objective.fold_length folds 1/T_i into the weight)"
        )
    return None


def _mask_needs_revisions(stages: Stages) -> str | None:
    if stages.credit.type == "edit-mask" and stages.shape.type != "ibpo":
        return "credit 'edit-mask' needs shape.type 'ibpo', which samples the revisions (shape.weight 0 leaves the reward alone)"
    return None


def _process_reads_no_advantage(stages: Stages) -> str | None:
    if stages.credit.type == "process" and stages.advantage.type != "dr-grpo":
        return (
            f"credit 'process' is made of values and never reads advantage {stages.advantage.type!r}; "
            "use advantage.type 'dr-grpo', which a response's credit then sums to"
        )
    return None


def _process_reads_no_shaped_reward(stages: Stages) -> str | None:
    if stages.credit.type != "process":
        return None
    if stages.shape.type != "none":
        return (
            f"credit 'process' values prefixes by the verifier's score, which shape {stages.shape.type!r} would not enter; "
            "use shape.type 'none'"
        )
    if stages.kl.beta > 0 and stages.kl.place == "reward":
        return "credit 'process' values prefixes by the verifier's score, which kl.place 'reward' would not enter; use kl.place 'loss'"
    return None


def _c_rf_reads_no_shaped_reward(stages: Stages) -> str | None:
    if stages.advantage.type != "c-rf":
        return None
    if stages.shape.type != "none":
        return f"advantage 'c-rf' goes by the verifier's score, which shape {stages.shape.type!r} would not enter; use shape.type 'none'"
    if stages.kl.beta > 0 and stages.kl.place == "reward":
        return "advantage 'c-rf' goes by the verifier's score, which kl.place 'reward' would not enter; use kl.place 'loss'"
    return None


def _pass_at_k_has_no_other_side(stages: Stages) -> str | None:
    if stages.advantage.type != "pass-at-k":
        return None
    credit, batching = stages.credit, stages.batching
    if credit.type in ("delta", "ntf", "ntf-keep") or (credit.type == "one-sided" and credit.side == "negative"):
        return f"advantage 'pass-at-k' is never negative, so credit {credit.type!r} has no negative side to work on"
    if batching.type == "reward-balanced":
        return "advantage 'pass-at-k' is never negative, so batching 'reward-balanced' has nothing to balance"
    return None


def _kept_divisor_needs_a_token_mean(stages: Stages) -> str | None:
    credit, objective = stages.credit, stages.objective
    if credit.type == "forking" and credit.divisor == "kept" and objective.aggregation != "token-mean":
        return (
            f"credit.divisor 'kept' averages over the kept tokens, but objective.aggregation {objective.aggregation!r} is no mean over "
            "tokens; use 'token-mean' or credit.divisor 'all'"
        )
    return None


RULES: tuple[Callable[[Stages], str | None], ...] = (
    _sequence_form_averages,
    _dfpo_needs_one_divisor,
    _mask_needs_revisions,
    _process_reads_no_advantage,
    _process_reads_no_shaped_reward,
    _c_rf_reads_no_shaped_reward,
    _pass_at_k_has_no_other_side,
    _kept_divisor_needs_a_token_mean,
)


def incompatibility(stages: Stages) -> str | None:
    """Why a combination is refused, or None."""
    return next((reason for rule in RULES if (reason := rule(stages))), None)
