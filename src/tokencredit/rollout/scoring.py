"""The stages as the local engine runs them: who scores tokens, and how much fits into a pass."""

from collections.abc import Callable
from functools import partial

from transformers import PreTrainedModel

from tokencredit.batching.microbatch import pass_tokens
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.memory import Notify, ignore, retry_with_half_budget
from tokencredit.forward.modes import ForwardMode, choose_forward_mode, feature_room
from tokencredit.forward.packed_scoring import PassRunner, score_packed_rows
from tokencredit.forward.padded import TokenScores, head_weight, row_cost, score_rows
from tokencredit.pipeline.credit import Crediting, ModelFacts
from tokencredit.policy.policy import Policy
from tokencredit.types import Credited, Rollouts, StepPlan


class Pipeline(Crediting):
    """The five stages of one configuration, each built once."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config, max_new_tokens=config.sampling.max_new_tokens, temperature=config.sampling.temperature)
        self.config = config

    @property
    def scores_in_a_pass(self) -> bool:
        """Cached decoding and a whole-sequence pass agree to rounding; in bfloat16 that rounding is too coarse for ratios.

        A correction compares the two, so it needs both. What the policy did not sample has been scored by nobody, and vLLM tells no
        entropies.
        """
        config = self.config
        if config.source == "demonstrations":
            return True
        needed = config.dtype == "bfloat16" or config.correction.enabled or config.sampler == "vllm"
        return config.scoring == "pass" or (config.scoring == "auto" and needed)

    @property
    def keeps_hidden_while_sampling(self) -> bool:
        return self.keeps_hidden and not self.scores_in_a_pass

    def score_tokens(
        self,
        model: PreTrainedModel,
        rollouts: Rollouts,
        *,
        keep_hidden: bool,
        passes: ForwardMode | None = None,
        notify: Notify = ignore,
        free_memory: Callable[[], None] = lambda: None,
    ) -> TokenScores:
        """Log-prob, entropy, and hidden states where asked for, in one pass; `free_memory` gives memory back where there is too little.

        `passes` is what `choose_forward_mode` says of the model, where somebody has asked it already.
        """
        passes = passes or choose_forward_mode(self.config, model)
        halving = partial(retry_with_half_budget, notify=notify, free_memory=free_memory)
        gather = score_rows
        if passes.packed:
            again = PassRunner(partial(passes.beginning, model), partial(halving, doing="computing hidden states again"))
            gather = partial(score_packed_rows, room=feature_room(self.config), again=again)

        def score(tokens: int) -> TokenScores:
            with passes.beginning(model):
                return gather(
                    model, rollouts, temperature=self.temperature, max_tokens=tokens, keep_hidden=keep_hidden, dtype=self.config.dtype
                )

        cost = row_cost(rollouts)
        longest = max(cost, default=1)
        # What the largest pass really takes, so that half of it is less.
        budget = min(self.config.optimizer.max_tokens, pass_tokens(range(len(cost)), cost, packed=passes.packed))
        return halving(score, budget=budget, longest=longest, doing="scoring tokens")

    def check_budget(self, rollouts: Rollouts) -> None:
        longest, budget = max(row_cost(rollouts)), self.config.optimizer.max_tokens
        if longest > budget:
            raise ConfigError(f"optimizer.max_tokens is {budget} but a response with its prompt takes {longest} tokens; give at least that")

    def plan_steps(self, credited: Credited, *, seed: int, packed: bool = False) -> StepPlan:
        chosen = self.config.optimizer
        return self.plan(
            credited,
            optimizer_steps=chosen.steps_per_batch,
            max_tokens=chosen.max_tokens,
            cost=row_cost(credited.rollouts),
            seed=seed,
            packed=packed,
        )


def model_facts(policy: Policy) -> ModelFacts:
    return ModelFacts(head_weight(policy.model), policy.end_tokens)
