"""Scoring: which log-probs a step trains on, and the pass that computes them with entropies and hidden states."""

from collections.abc import Callable
from functools import partial

from transformers import PreTrainedModel

from tokencredit.batching.microbatch import pass_tokens
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.memory import Notify, ignore, retry_with_half_budget
from tokencredit.forward.modes import ForwardMode, choose_forward_mode, feature_room
from tokencredit.forward.packed_scoring import PassRunner, score_packed_rows
from tokencredit.forward.padded import head_weight, row_cost, score_rows
from tokencredit.pipeline.credit import CreditPipeline, ModelFacts
from tokencredit.policy.policy import Policy
from tokencredit.types import Credited, Rollouts, StepPlan, TokenScores


def credit_pipeline(config: TrainConfig) -> CreditPipeline:
    """The five stages of one configuration, each built once."""
    return CreditPipeline(config, max_new_tokens=config.sampling.max_new_tokens, temperature=config.sampling.temperature)


def needs_scoring_pass(config: TrainConfig) -> bool:
    """Cached decoding and a full-sequence pass agree up to rounding; in bfloat16 that rounding is too coarse for ratios.

    A correction compares the two, so it needs both. Demonstrations were not sampled, and vLLM returns no entropies.
    """
    if config.source == "demonstrations":
        return True
    needed = config.dtype == "bfloat16" or config.correction.enabled or config.sampler == "vllm"
    return config.scoring == "pass" or (config.scoring == "auto" and needed)


def keeps_hidden_while_sampling(config: TrainConfig, pipeline: CreditPipeline) -> bool:
    return pipeline.keeps_hidden and not needs_scoring_pass(config)


def score_tokens(
    config: TrainConfig,
    model: PreTrainedModel,
    rollouts: Rollouts,
    *,
    keep_hidden: bool,
    mode: ForwardMode | None = None,
    notify: Notify = ignore,
    free_memory: Callable[[], None] = lambda: None,
) -> TokenScores:
    """Log-prob, entropy and, with `keep_hidden`, hidden states in one pass; `free_memory` is called before a retry with half the tokens.

    `mode` is the result of `choose_forward_mode` for the model, if the caller already has it.
    """
    mode = mode or choose_forward_mode(config, model)
    halving = partial(retry_with_half_budget, notify=notify, free_memory=free_memory)
    score_in_passes = score_rows
    if mode.packed:
        again = PassRunner(partial(mode.context, model), partial(halving, doing="recomputing hidden states"))
        score_in_passes = partial(score_packed_rows, room=feature_room(config), again=again)

    def score(tokens: int) -> TokenScores:
        with mode.context(model):
            return score_in_passes(
                model, rollouts, temperature=config.sampling.temperature, max_tokens=tokens, keep_hidden=keep_hidden, dtype=config.dtype
            )

    cost = row_cost(rollouts)
    longest = max(cost, default=1)
    # The tokens of the largest actual pass, so that half of it is smaller.
    budget = min(config.optimizer.max_tokens, pass_tokens(range(len(cost)), cost, packed=mode.packed))
    return halving(score, budget=budget, longest=longest, doing="scoring tokens")


def check_budget(config: TrainConfig, rollouts: Rollouts) -> None:
    longest, budget = max(row_cost(rollouts)), config.optimizer.max_tokens
    if longest > budget:
        raise ConfigError(f"optimizer.max_tokens is {budget} but a response with its prompt takes {longest} tokens; give at least that")


def plan_steps(pipeline: CreditPipeline, config: TrainConfig, credited: Credited, *, seed: int, packed: bool = False) -> StepPlan:
    chosen = config.optimizer
    return pipeline.plan(
        credited,
        optimizer_steps=chosen.steps_per_batch,
        max_tokens=chosen.max_tokens,
        cost=row_cost(credited.rollouts),
        seed=seed,
        packed=packed,
    )


def model_facts(policy: Policy) -> ModelFacts:
    return ModelFacts(head_weight(policy.model), policy.end_tokens)
