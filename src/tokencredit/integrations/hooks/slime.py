"""slime: three path hooks make up a recipe.

Reward post-processing, the one place that sees all siblings, compares responses; the advantage function, which has
log-probs, credits their tokens; the loss is the objective. slime finds functions by path, so the recipe is read from
`args.tokencredit_recipe`, an entry of the file that `--custom-config-path` names.

Which settings of slime go with a recipe's functions, and which those functions ignore.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tokencredit.config import Recipe
from tokencredit.config.resolve import RecipeSource, read_recipe
from tokencredit.errors import ConfigError
from tokencredit.integrations.hooks.responses import (
    compare_responses,
    credit_responses,
    finite_inside,
    group_numbers,
    objective_inputs,
    silenced,
)
from tokencredit.integrations.support import ELSEWHERE, EngineHooks, check_recipe
from tokencredit.masked import masked_sum
from tokencredit.pipeline.credit import CreditPipeline

HOOKS = ("custom_reward_post_process_path", "custom_advantage_function_path", "custom_loss_function_path")
UNREAD = ("kl_coef", "use_kl_loss", "entropy_coef", "use_tis", "use_opsm", "use_opd", "custom_pg_loss_reducer_function_path")
"""Settings of slime's own loss and advantages, which these functions replace."""


def check_settings(args: Any, recipe: Recipe) -> None:
    """Refuse a run in which a part of the recipe, or of slime's own settings, would do nothing."""
    missing = [_flag(name) for name in HOOKS if getattr(args, name, None) is None]
    missing += [] if args.loss_type == "custom_loss" else ["--loss-type custom_loss"]
    if missing:
        raise ConfigError(f"a recipe is three functions in slime; also set {', '.join(missing)}")
    for name in UNREAD:
        if getattr(args, name, None):
            raise ConfigError(f"{_flag(name)} is {getattr(args, name)} but is not read by the recipe's functions; leave it out")
    if getattr(args, "normalize_advantages", False):
        raise ConfigError("--normalize-advantages would change the recipe's credit; leave it out")
    if getattr(args, "rollout_top_p", 1.0) != 1.0:
        raise ConfigError(f"--rollout-top-p is {args.rollout_top_p} but log-probs are taken over the whole vocabulary; use 1.0")
    aggregation = recipe.objective.aggregation
    if args.calculate_per_token_loss != (aggregation == "token-mean"):
        what = "set" if aggregation == "token-mean" else "leave out"
        raise ConfigError(f"the recipe's aggregation is {aggregation!r}; {what} --calculate-per-token-loss")
    if recipe.batching.deals_prompts and args.global_batch_size % args.n_samples_per_prompt:
        raise ConfigError(
            f"--global-batch-size is {args.global_batch_size}, no multiple of --n-samples-per-prompt {args.n_samples_per_prompt}, "
            "so an optimizer step would split a prompt's responses"
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


SLIME = EngineHooks(
    "slime",
    whole_groups=True,
    filter_groups="use --dynamic-sampling-filter-path",
    kl=f"leave it out, or {ELSEWHERE}",
)
Rewards = tuple[list[float], list[float]]
Reducer = Callable[[Tensor], Tensor]


def slime_rewards(recipe: RecipeSource) -> Callable[[Any, Sequence[Any]], Rewards]:
    """Raw rewards, and in place of slime's normalised ones the advantage of every sample among those of its `group_index`."""
    chosen = _checked(recipe)

    def post_process(args: Any, samples: Sequence[Any]) -> Rewards:
        check_settings(args, chosen)
        if any(sample.group_index is None for sample in samples):
            raise ConfigError("a sample has no group_index, so its siblings are not known; a custom data source must set it")
        rollouts = [name for sample in samples if (name := getattr(sample, "rollout_id", None)) is not None]
        if len(set(rollouts)) != len(rollouts):
            raise ConfigError(f"a rollout comes as several samples, which would be compared as if each were a response; {ELSEWHERE}")
        rewards = [sample.get_reward_value(args) for sample in samples]
        raw = [float("nan") if reward is None else float(reward) for reward in rewards]
        advantage = compare_responses(
            CreditPipeline(chosen, max_new_tokens=args.rollout_max_response_len),
            torch.tensor(raw),
            torch.tensor([_loss_tokens(sample) for sample in samples]),
            group_numbers(sample.group_index for sample in samples),
        )
        return raw, advantage.tolist()

    return post_process


def slime_advantage(recipe: RecipeSource) -> Callable[[Any, dict[str, Any]], None]:
    """Sets `advantages` and `returns` to the credit of every token, from the advantages that `slime_rewards` left in `rewards`."""
    chosen = _checked(recipe)

    def assign(args: Any, rollout_data: dict[str, Any]) -> None:
        check_settings(args, chosen)
        old_logp = rollout_data["rollout_log_probs" if args.use_rollout_logprobs else "log_probs"]
        mask = _loss_mask(rollout_data, old_logp)
        logp = finite_inside("log_probs", pad_sequence(list(old_logp), batch_first=True), mask)
        advantage = logp.new_tensor([float(value) for value in rollout_data["rewards"]])
        pipeline = CreditPipeline(chosen, max_new_tokens=args.rollout_max_response_len)
        credit = credit_responses(pipeline, advantage[:, None].expand_as(logp), mask, logp)
        rollout_data["advantages"] = [row[: len(one)] for row, one in zip(credit, old_logp, strict=True)]
        rollout_data["returns"] = [row.clone() for row in rollout_data["advantages"]]

    return assign


def slime_loss(recipe: RecipeSource) -> Callable[[Any, dict[str, Any], Tensor, Reducer], tuple[Tensor, dict[str, Tensor]]]:
    """The objective, reduced by slime's own means; `constant` divides by the length limit or objective.constant_length."""
    chosen = _checked(recipe)

    def loss(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        check_settings(args, chosen)
        pipeline = CreditPipeline(chosen, max_new_tokens=args.rollout_max_response_len)
        built, correct = pipeline.objective, pipeline.correction
        new_logp = policy_log_probs(args, batch, logits)
        mask = _loss_mask(batch, new_logp)
        padded = {
            name: pad_sequence(list(batch[name]), batch_first=True)
            for name in ("log_probs", "rollout_log_probs", "advantages")
            if batch.get(name)
        }
        old_logp = padded["rollout_log_probs" if args.use_rollout_logprobs else "log_probs"]
        if correct is not None and (args.use_rollout_logprobs or "rollout_log_probs" not in padded):
            raise ConfigError(
                f"correction.kind is {chosen.correction.kind!r}, which compares log_probs with rollout_log_probs; "
                "leave out --use-rollout-logprobs and have the rollouts return log-probs"
            )
        logp = finite_inside("log_probs", pad_sequence(list(new_logp), batch_first=True), mask)
        old_logp = finite_inside("old log_probs", old_logp, mask).to(logp.dtype)
        correction = None if correct is None else correct(old_logp, padded["rollout_log_probs"], mask)
        credit = padded["advantages"].to(logp.dtype).where(mask, 0.0)
        inputs = objective_inputs(logp, old_logp, mask, credit=credit, correction=correction)
        token_loss = built.objective.token_loss(inputs, None)

        def reduced(value: Tensor) -> Tensor:
            return sum_of_sample_mean(torch.cat([row[: len(one)] for row, one in zip(value, new_logp, strict=True)]))

        total = masked_sum(token_loss, mask) / built.constant_length if built.aggregation == "constant" else reduced(token_loss)
        return total, {"loss": total.detach().clone(), "pg_clipfrac": reduced(silenced(built.objective, inputs).token.to(logp.dtype))}

    return loss


def policy_log_probs(args: Any, batch: Mapping[str, Any], logits: Tensor) -> list[Tensor]:
    """Log-probs of every response under the policy being trained, by slime's own function for logits split over ranks."""
    from slime.backends.megatron_utils.loss import get_log_probs_and_entropy  # pyright: ignore[reportMissingImports]

    parts = {name: batch[name] for name in ("unconcat_tokens", "total_lengths", "response_lengths")}
    return get_log_probs_and_entropy(logits, args=args, with_entropy=False, **parts)[1]["log_probs"]


def slime_reward_post_process(args: Any, samples: Sequence[Any]) -> Rewards:
    """For `--custom-reward-post-process-path`."""
    return _made(slime_rewards, _named(args))(args, samples)


def slime_custom_advantage(args: Any, rollout_data: dict[str, Any]) -> None:
    """For `--custom-advantage-function-path`."""
    _made(slime_advantage, _named(args))(args, rollout_data)


def slime_custom_loss(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
    """For `--loss-type custom_loss --custom-loss-function-path`."""
    return _made(slime_loss, _named(args))(args, batch, logits, sum_of_sample_mean)


@lru_cache
def _made(factory: Callable[..., Any], recipe: str) -> Callable[..., Any]:
    return factory(json.loads(recipe))


def _named(args: Any) -> str:
    if (recipe := getattr(args, "tokencredit_recipe", None)) is None:
        raise ConfigError("args.tokencredit_recipe is missing; name a recipe as tokencredit_recipe in the --custom-config-path file")
    return json.dumps(recipe, sort_keys=True)


def _checked(recipe: RecipeSource) -> Recipe:
    chosen = read_recipe(recipe)
    check_recipe(chosen, SLIME)
    return chosen


def _loss_tokens(sample: Any) -> int:
    if getattr(sample, "remove_sample", False):
        return 0
    return sample.response_length if sample.loss_mask is None else sum(sample.loss_mask)


def _loss_mask(data: Mapping[str, Any], logp: Sequence[Tensor]) -> Tensor:
    for one, length in zip(logp, data["response_lengths"], strict=True):
        if len(one) != length:
            raise ConfigError(
                f"a response of {length} tokens came with {len(one)} log-probs: with context parallelism a rank sees parts of responses; "
                "use --context-parallel-size 1"
            )
    mask = pad_sequence([mask.to(one.device) > 0 for mask, one in zip(data["loss_masks"], logp, strict=True)], batch_first=True)
    if data.get("rollout_log_probs"):
        # What the sampler could not score leaves the loss.
        mask &= ~pad_sequence(list(data["rollout_log_probs"]), batch_first=True).isnan()
    return mask
