"""Methods of the batching stage: which responses share an optimizer step."""

from typing import Annotated, ClassVar, Literal

from tokencredit.config.base import READING, MethodConfig, OnlyWhen, Origin


class BatchingBase(MethodConfig):
    stage = "batching"
    engines: ClassVar[Literal["any", "whole groups", "ours"]] = "ours"
    """Which engines deal responses like this by themselves: any, those that keep groups whole, or only ours."""
    spreads_prompts: ClassVar[bool] = False
    """Every optimizer step holds a response of every prompt."""

    @property
    def deals_prompts(self) -> bool:
        """Whole prompts are dealt to optimizer steps, not single responses."""
        return False

    @property
    def deals_unevenly(self) -> str | None:
        """Which setting makes optimizer steps of unequal size, and the one that does not."""
        return None


class ShuffledBatching(BatchingBase):
    """Responses are dealt at random."""

    formula = "responses are shuffled and cut into optimizer steps of equal size"
    caveats = ("a prompt's responses land in different optimizer steps, where they cannot cancel",)
    engines = "any"

    type: Literal["shuffled"] = "shuffled"


class QueryPreservedBatching(BatchingBase):
    """Prompts are dealt; responses to a prompt stay together."""

    formula = "prompts are shuffled and dealt to optimizer steps with all their responses"
    caveats = (
        "reading: the paper's algorithm was not found",
        "an optimizer step sees fewer prompts, so its gradient is noisier (cluster sampling)",
    )
    engines = "whole groups"

    type: Literal["query-preserved"] = "query-preserved"

    @property
    def deals_prompts(self) -> bool:
        return True


class RewardBalancedBatching(BatchingBase):
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

    @property
    def deals_prompts(self) -> bool:
        return self.keep_queries

    @property
    def compares_siblings(self) -> str | None:
        if self.method != "subsample" or not self.keep_queries:
            return None
        return "keeps as many right as wrong responses of each prompt (batching.method 'subsample')"

    @property
    def needs_negative_side(self) -> str:
        return "has nothing to balance"

    @property
    def deals_unevenly(self) -> str | None:
        if self.method != "assign" or self.keep_queries:
            return None
        return "batching.keep_queries=false deals responses unevenly; keep queries whole"


class StratifiedBatching(BatchingBase):
    """Every optimizer step sees a few responses of every prompt."""

    formula = "each prompt's responses are shuffled and dealt over all optimizer steps in turn"
    caveats = ("as many prompts per step as there are, but opposing responses of a prompt rarely meet whole",)
    spreads_prompts = True

    type: Literal["stratified"] = "stratified"


BatchingChoice = ShuffledBatching | QueryPreservedBatching | RewardBalancedBatching | StratifiedBatching
