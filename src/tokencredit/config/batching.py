"""Choices of which tokens meet in one optimizer step."""

from typing import Annotated, Literal

from tokencredit.config.base import READING, MethodConfig, OnlyWhen, Origin


class ShuffledBatching(MethodConfig):
    """Responses are dealt at random."""

    formula = "responses are shuffled and cut into optimizer steps of equal size"
    caveats = ("a prompt's responses land in different optimizer steps, where they cannot cancel",)

    type: Literal["shuffled"] = "shuffled"


class QueryPreservedBatching(MethodConfig):
    """Prompts are dealt; responses to a prompt stay together."""

    formula = "prompts are shuffled and dealt to optimizer steps with all their responses"
    caveats = (
        "reading: the paper's algorithm was not found",
        "an optimizer step sees fewer prompts, so its gradient is noisier (cluster sampling)",
    )

    type: Literal["query-preserved"] = "query-preserved"


class RewardBalancedBatching(MethodConfig):
    """Every optimizer step sees positive and negative responses in balance."""

    formula = (
        "assign: deal so that every step has as many positive as negative responses as can be;  subsample: keep equal numbers;  "
        "reweight: A_i (M / 2) / M_side with M_side the step's sum |A_i| T_i of a side"
    )
    caveats = (
        "reading: only 'balanced positive and negative rollouts in each update' is published",
        "subsample leaves responses out of the update; after it or after reweight a prompt's advantages no longer sum to 0",
    )

    type: Literal["reward-balanced"] = "reward-balanced"
    method: Annotated[Literal["assign", "subsample", "reweight"], READING] = "assign"
    """Which of the three readings."""
    keep_queries: Annotated[bool, Origin("reading: composed with query-preserved")] = True
    """Keep responses to a prompt together."""
    mass: Annotated[Literal["tokens", "responses"], READING, OnlyWhen("method", ("reweight",))] = "tokens"
    """What reweight equalises: sum |A_i| T_i, or sum |A_i|."""


class StratifiedBatching(MethodConfig):
    """Every optimizer step sees a few responses of every prompt."""

    formula = "each prompt's responses are shuffled and dealt over all optimizer steps in turn"
    caveats = ("as many prompts per step as there are, but opposing responses of a prompt rarely meet whole",)

    type: Literal["stratified"] = "stratified"


BatchingChoice = ShuffledBatching | QueryPreservedBatching | RewardBalancedBatching | StratifiedBatching


def keeps_queries(choice: BatchingChoice) -> bool:
    """Whole prompts are dealt, not responses."""
    return choice.type == "query-preserved" or (choice.type == "reward-balanced" and choice.keep_queries)
