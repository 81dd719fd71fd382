"""Real TRL trainers around a tiny random model, driven so that log-probs, completions and rewards are ours and all arithmetic is theirs."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from crosscheck.agreement import Loss
from crosscheck.batches import Batch

VOCABULARY = {"<pad>": 0, "<end>": 1, "a": 2, "b": 3}
TRAINERS = {"grpo": (GRPOTrainer, GRPOConfig), "gmpo": (GMPOTrainer, GMPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}


def save_model(folder: Path) -> None:
    words = Tokenizer(WordLevel(VOCABULARY, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<pad>", padding_side="left").save_pretrained(folder)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    special = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
    Qwen3ForCausalLM(Qwen3Config(vocab_size=len(VOCABULARY), head_dim=8, **shape, **special)).save_pretrained(folder)


def build_trainer(folder: Path, kind: str = "grpo", **settings: Any) -> Any:
    trainer_class, config_class = TRAINERS[kind]
    settings = {"num_generations": 2, "beta": 0.0, **settings}
    config = config_class(
        output_dir=str(folder / "run"),
        per_device_train_batch_size=settings["num_generations"],
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **settings,
    )
    # The reward rides along in the data, so that the trainer's own reward path is the one that runs.
    trainer = trainer_class(
        model=str(folder),
        reward_funcs=lambda reward, **_: reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "a", "reward": 0.0}] * 8),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder),
    )
    trainer.model.train()
    return trainer


def _extent(mask: Tensor) -> Tensor:
    """True up to the last token of each response: TRL keeps holes apart, as `tool_mask`."""
    return mask.flip(-1).cumsum(-1).flip(-1) > 0


def their_loss(trainer: Any, batch: Batch, advantages: Tensor, *, ratio: Tensor | None = None, cuts: int = 1) -> Loss:
    """The trainer's `_compute_loss` over one accumulation window of `cuts` micro-batches, added up as the window adds gradients.

    `advantages` [seq] as TRL makes them, or [seq, tok]; `ratio` is the importance ratio it would have found with vLLM.
    """
    trainer.current_gradient_accumulation_steps = cuts
    trainer.use_vllm = ratio is not None
    logp = batch.logp.clone().requires_grad_()
    value = torch.zeros((), dtype=torch.float64)
    for rows in torch.arange(len(batch.group)).chunk(cuts):
        prompt = torch.ones(len(rows), 1, dtype=torch.long)
        inputs = {
            "prompt_ids": prompt,
            "prompt_mask": prompt,
            "completion_ids": torch.ones_like(batch.mask[rows], dtype=torch.long),
            "completion_mask": _extent(batch.mask[rows]).long(),
            "tool_mask": batch.mask[rows].long(),
            "advantages": advantages[rows],
            "old_per_token_logps": batch.old_logp[rows],
            "ref_per_token_logps": batch.reference_logp[rows],
            "num_items_in_batch": batch.mask.sum(),
        }
        if ratio is not None:
            inputs["importance_sampling_ratio"] = ratio[rows]
        scored = logp[rows]
        trainer._get_per_token_logps_and_entropies = lambda *_, scored=scored, **__: (scored, torch.zeros_like(scored), None)
        value = value + trainer._compute_loss(trainer.model, inputs)
    return Loss(value.detach(), torch.autograd.grad(value, logp)[0])


def their_scores(trainer: Any, batch: Batch, *, sampler_logp: Tensor | None = None) -> dict[str, Any]:
    """What the trainer's `_generate_and_score_completions` makes of the batch's responses and rewards, a NaN reward being None.

    Log-probs of the sampler switch on what it does with vLLM's; vLLM itself would only have produced them.
    """
    extent = _extent(batch.mask).sum(-1).clamp(min=1).tolist()
    completions = [[2] * length for length in extent]

    def rollout(prompts: list[str], _: Any) -> dict[str, Any]:
        logprobs = None if sampler_logp is None else [row[:length].tolist() for row, length in zip(sampler_logp, extent, strict=True)]
        env_mask = [row[:length].long().tolist() for row, length in zip(batch.mask, extent, strict=True)]
        return {"prompt_ids": [[2]] * len(prompts), "completion_ids": completions, "logprobs": logprobs, "env_mask": env_mask}

    if isinstance(trainer, GRPOTrainer):
        trainer.rollout_func = rollout
        trainer.use_vllm = sampler_logp is not None
        trainer._last_loaded_step = trainer.state.global_step
    else:
        trainer._generate_single_turn = lambda *_: completions
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (batch.old_logp, None, None)
    # TRL keeps rewards in float32; widened, its arithmetic is compared and not its rounding.
    rewards_in_single = type(trainer)._calculate_rewards
    trainer._calculate_rewards = lambda *arguments: rewards_in_single(trainer, *arguments).double()
    rewards = [None if reward != reward else reward for reward in batch.reward.tolist()]
    return trainer._generate_and_score_completions([{"prompt": "a", "reward": reward} for reward in rewards])
