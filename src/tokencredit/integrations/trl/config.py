"""Configuration for TRL: a TrainConfig as GRPOConfig, data set and reward function, and checks of both.

A GRPOConfig setting that the recipe decides, and a setting that TRL does not support, raise an error; nothing is overruled.
"""

import copy
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset
from trl import GRPOConfig

from tokencredit.config import Kl, Recipe
from tokencredit.config.resolve import read_recipe
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.integrations.support import refuse_recipe
from tokencredit.pipeline.distributed import refuse_ranks
from tokencredit.policy.policy import Policy, choose_device
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem, Task, verdicts

DECIDED_BY_THE_RECIPE = {
    "loss_type": "objective.type and objective.aggregation",
    "epsilon": "objective.clip_low",
    "epsilon_high": "objective.clip_high",
    "delta": "objective.dual_clip",
    "importance_sampling_level": "objective.type 'gspo'",
    "scale_rewards": "advantage.type",
    "multi_objective_aggregation": "advantage.type",
    "top_entropy_quantile": "credit.type 'forking' and credit.keep",
    "use_bias_correction_kl": "kl.estimator",
    "sapo_temperature_pos": "objective.type 'sapo'",
    "sapo_temperature_neg": "objective.type 'sapo'",
}
NOT_HONOURED = (
    "off_policy_mask_threshold",
    "entropy_coef",
    "use_adaptive_entropy",
    "vespo_k_pos",
    "vespo_k_neg",
    "vespo_lambda_pos",
    "vespo_lambda_neg",
)
"""Terms that TRL's own loss has and no recipe does."""


class Settings(NamedTuple):
    args: GRPOConfig
    recipe: Recipe


def settle(args: GRPOConfig, recipe: Recipe) -> Settings:
    """Both settings with one KL term; a ConfigError where they contradict each other."""
    _refuse_recipe(recipe, args)
    defaults = {field.name: field.default for field in fields(GRPOConfig)}
    for name, key in DECIDED_BY_THE_RECIPE.items():
        if name in defaults and getattr(args, name) != defaults[name]:
            raise ConfigError(f"{name} is {getattr(args, name)!r}, but the recipe decides it: leave it at its default and set {key}")
    for name in NOT_HONOURED:
        if name in defaults and getattr(args, name) != defaults[name]:
            raise ConfigError(f"{name} is {getattr(args, name)!r}, but no recipe has such a term; leave it at its default")
    _refuse_batch(args, recipe)
    return _settle_kl(args, recipe)


def refuse_separate_processes(processes: int) -> None:
    """Without a GPU and without use_cpu, accelerate joins no processes: each would train alone, unnoticed."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != processes:
        raise ConfigError(
            f"{started} processes were started but accelerate joins {processes}; without a GPU set use_cpu=True in GRPOConfig"
        )


def optimizer_steps(args: GRPOConfig) -> int:
    """Per batch of generations, and per pass over it."""
    return _as_int(args.steps_per_generation) // args.gradient_accumulation_steps


def _refuse_recipe(recipe: Recipe, args: GRPOConfig) -> None:
    refuse_recipe(recipe)
    refuse_ranks(recipe, args.world_size)
    if recipe.correction.enabled:
        if not args.use_vllm:
            raise ConfigError(f"correction.kind is {recipe.correction.kind!r}, but without use_vllm the trainer is the sampler; use 'none'")
        if args.vllm_importance_sampling_correction:
            raise ConfigError("correction.kind and vllm_importance_sampling_correction would both weigh tokens; turn one of them off")


def _refuse_batch(args: GRPOConfig, recipe: Recipe) -> None:
    slices, accumulated = _as_int(args.steps_per_generation), args.gradient_accumulation_steps
    if slices % accumulated:
        raise ConfigError(
            f"gradient_accumulation_steps is {accumulated} but steps_per_generation is {slices}; a plan covers one batch of generations, "
            "so steps_per_generation must be a multiple of gradient_accumulation_steps"
        )
    steps, prompts = slices // accumulated, _as_int(args.generation_batch_size) // _as_int(args.num_generations)
    if recipe.batching.deals_prompts and prompts % steps:
        raise ConfigError(
            f"a batch of generations holds {prompts} prompts for {steps} optimizer steps, but batching {recipe.batching.type!r} deals "
            "whole prompts; make the prompts (generation_batch_size / num_generations) a multiple of the optimizer steps"
        )
    if recipe.batching.spreads_prompts and steps > _as_int(args.num_generations):
        raise ConfigError(
            f"{recipe.batching.label} puts a response of every prompt into each of {steps} optimizer steps; raise num_generations"
        )


def _settle_kl(args: GRPOConfig, recipe: Recipe) -> Settings:
    """TRL loads the reference where beta is above 0, so beta and kl.beta must agree."""
    if recipe.kl.beta == 0 and args.beta > 0:
        recipe = recipe.model_copy(update={"kl": Kl(beta=args.beta)})
    if args.beta not in (0.0, recipe.kl.beta):
        raise ConfigError(f"beta is {args.beta} but the recipe's kl.beta is {recipe.kl.beta}; leave one of them at 0")
    args = copy.copy(args)
    args.beta = recipe.kl.beta
    return Settings(args, recipe)


def _as_int(value: Any) -> int:
    """TRL fills in these fields when it creates a GRPOConfig; afterwards they are never None."""
    assert value is not None
    return int(value)


SEEDS = 2**32
"""Upper bound of the seeds that TRL's generators accept."""


def refuse(config: TrainConfig) -> None:
    """Refuse settings that TRL does not support, including the GRPOConfig they would give."""
    if config.diagnose.every:
        raise ConfigError(f"diagnose.every is {config.diagnose.every}, but only the local engine observes updates; set diagnose.every to 0")
    if config.keep_every:
        raise ConfigError(
            f"keep_every is {config.keep_every}, but only the local engine can repeat steps from kept checkpoints; set it to 0"
        )
    if config.dtype == "float64":
        raise ConfigError("dtype is 'float64', but TRL trains in float32 or bfloat16; use one of them or the local engine")
    if config.weights != "float32":
        raise ConfigError(f"weights is {config.weights!r}, but only the local engine keeps weights in bfloat16; use 'float32'")
    if config.lora.rank:
        raise ConfigError(f"lora.rank is {config.lora.rank}, but only the local engine adds adapters to a run; set it to 0")
    if config.optimizer.gradient_checkpointing:
        raise ConfigError("optimizer.gradient_checkpointing is true, but only the local engine supports it; set it to false")
    if config.scoring == "sampler":
        raise ConfigError("scoring is 'sampler', but TRL scores tokens in a pass of its own; use 'auto' or 'pass'")
    for name in ("sampler", "passes", "compile", "features"):
        if (chosen := getattr(config, name)) != "auto":
            raise ConfigError(f"{name} is {chosen!r}, but TRL runs sampling and forward passes itself; use 'auto'")
    if config.features_gib != (usual := TrainConfig.model_fields["features_gib"].default):
        raise ConfigError(
            f"features_gib is {config.features_gib:g}, but TRL keeps no hidden states of packed passes; leave it at {usual:g}"
        )
    if config.source != "policy":
        raise ConfigError(f"source is {config.source!r}, but TRL samples from the policy; use the local engine for a warm start")
    if config.sampling.stop:
        raise ConfigError(f"sampling.stop is {config.sampling.stop}, but this engine does not pass stop strings to TRL; leave it empty")
    if config.reward.format or config.reward.length:
        raise ConfigError("reward.format and reward.length are the local engine's; leave them at 0")
    if config.sampling.group_size < 2:
        raise ConfigError("sampling.group_size is 1, but TRL compares at least 2 responses of a prompt; give at least 2")
    if config.seed >= SEEDS:
        raise ConfigError(f"seed is {config.seed}, but TRL takes seeds below {SEEDS}; give a smaller one")
    choose_device(config.device)
    longest = config.optimizer.max_tokens  # Enough for one row, for any prompt.
    settle(grpo_config(config, Path("unused"), longest=longest), read_recipe(config))


def grpo_config(config: TrainConfig, checkpoints: Path, *, longest: int) -> GRPOConfig:
    """`longest`: maximum tokens of a prompt with its response, for the budget of a micro-batch."""
    per_batch, per_save = config.optimizer.steps_per_batch, config.save_every or config.steps
    own = _own_rows(config, processes=int(os.environ.get("WORLD_SIZE", "1")))
    at_once = max(size for size in range(1, own + 1) if own % size == 0 and (size == 1 or size * longest <= config.optimizer.max_tokens))
    return GRPOConfig(
        output_dir=str(checkpoints),
        seed=config.seed,
        use_cpu=choose_device(config.device).type == "cpu",
        bf16=config.dtype == "bfloat16",
        max_steps=config.steps * per_batch,
        num_generations=config.sampling.group_size,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=own // at_once,
        steps_per_generation=own // at_once * per_batch,
        max_completion_length=config.sampling.max_new_tokens,
        temperature=config.sampling.temperature,
        max_grad_norm=config.optimizer.gradient_clip,
        shuffle_dataset=False,
        disable_dropout=True,
        gradient_checkpointing=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=per_save * per_batch,
        save_total_limit=config.keep_last,  # A crash may damage the last one; the one before it is intact.
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
    )


def _own_rows(config: TrainConfig, *, processes: int) -> int:
    """Responses of one optimizer step that each process takes."""
    sampling, per_batch = config.sampling, config.optimizer.steps_per_batch
    own, left = divmod(sampling.prompts * sampling.group_size, per_batch * processes)
    if left:
        raise ConfigError(
            f"sampling.prompts x sampling.group_size is {sampling.prompts * sampling.group_size}, but TRL deals equal shares to "
            f"{per_batch} optimizer steps (steps_per_batch) on {processes} process(es); make it a multiple of {per_batch * processes}"
        )
    return own


def training_problems(config: TrainConfig, task: Task) -> list[list[Problem]]:
    """The problems that the local engine samples, by training step."""
    return [
        task.problems(config.sampling.prompts, split="train", seed=derive_seed(config.seed, "prompts", step, 0))
        for step in range(config.steps)
    ]


def as_dataset(problems: Sequence[Sequence[Problem]]) -> Dataset:
    return Dataset.from_list([{"prompt": problem.prompt, "answer": problem.answer} for batch in problems for problem in batch])


def reward_function(policy: Policy, task: Task) -> Callable[..., list[float | None]]:
    """Decodes responses from their ids like the local engine: TRL's texts drop every special token."""

    def verdict(prompts: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float | None]:
        given = zip(prompts, answer, completion_ids, strict=True)
        answered = [(Problem(prompt=prompt, answer=right), policy.answer(ids)) for prompt, right, ids in given]
        return [None if math.isnan(verdict.score) else verdict.score for verdict in verdicts(task, answered)]

    return verdict
