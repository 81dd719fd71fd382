"""The loss path of TRL's GRPOTrainer on given rollouts: its scoring, its loss, its optimizer.

The trainer is built by its own constructor and its own methods are called, as its training loop calls them; sampling,
rewards, data loading and logging are left out. Needs trl (extra trl). What trl imports and this path never uses
(datasets, pandas) may be missing: an empty stand-in takes its place, and the result says so.
"""

import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tokencredit.forward.padded import pad_prompts
from tokencredit.lab.speed.timing import WaitingStopwatch
from tokencredit.types import Credited, StepPlan


def why_no_trl() -> str | None:
    return None if importlib.util.find_spec("trl") else "trl is not installed (extra trl)"


class _Rows:
    """A minimal dataset for a trainer that never reads it."""

    cache_files: tuple[str, ...] = ()

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    @classmethod
    def from_list(cls, rows: list[dict[str, Any]]) -> "_Rows":
        return cls(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


STAND_INS = {
    "datasets": {"Dataset": _Rows} | {name: type(name, (), {}) for name in ("DatasetDict", "IterableDataset", "IterableDatasetDict")},
    "pandas": {"DataFrame": type("DataFrame", (), {})},
}


class Trl(NamedTuple):
    trainer: Any
    config: Any
    dataset: Any
    disable_checkpointing: Any
    stand_ins: tuple[str, ...]
    version: str


@contextmanager
def _standing_in() -> Iterator[tuple[str, ...]]:
    missing = tuple(name for name in STAND_INS if importlib.util.find_spec(name) is None)
    for name in missing:
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(STAND_INS[name])
        sys.modules[name] = module
    try:
        yield missing
    finally:
        for name in missing:
            del sys.modules[name]


_loaded: list[Trl] = []


def load_trl() -> Trl:
    """Loaded once; the stand-in modules are removed again, so that no other import mistakes them for TRL."""
    if not _loaded:
        with _standing_in() as missing:
            trl = importlib.import_module("trl")
            trainer, config = trl.GRPOTrainer, trl.GRPOConfig
            module = importlib.import_module("trl.trainer.grpo_trainer")
            disable = importlib.import_module("trl.models.utils").disable_gradient_checkpointing
        _loaded.append(Trl(trainer, config, module.Dataset, disable, missing, metadata.version("trl")))
    return _loaded[0]


class TrlKnobs(NamedTuple):
    rows_per_pass: int
    checkpointing: bool


def _reward(completions: list[str], **_: object) -> list[float]:
    return [0.0] * len(completions)


class TrlPath:
    """Scores the batch and takes the optimizer steps of a plan of ours: the same rows, advantages and denominators."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        credited: Credited,
        plan: StepPlan,
        knobs: TrlKnobs,
        *,
        learning_rate: float,
        gradient_clip: float,
        betas: tuple[float, float],
    ) -> None:
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "CI": os.environ.get("CI", "benchmark")}
        self.trl, self.plan, self.knobs = load_trl(), plan, knobs
        self.stages: dict[str, float] = {}
        rows = len(plan.steps[0].rows)
        self.accumulated = -(-rows // knobs.rows_per_pass)
        on_cpu = model.device.type == "cpu"
        # The trainer requires an output folder; nothing is written to it.
        with tempfile.TemporaryDirectory() as scratch:
            self.trainer = self.trl.trainer(
                model=model,
                processing_class=tokenizer,
                reward_funcs=_reward,
                train_dataset=self.trl.dataset.from_list([{"prompt": "t1"}] * rows),
                args=self.trl.config(
                    output_dir=scratch,
                    per_device_train_batch_size=rows,
                    gradient_accumulation_steps=1,
                    steps_per_generation=len(plan.steps),
                    num_generations=rows,
                    max_completion_length=credited.rollouts.tokens.shape[1],
                    learning_rate=learning_rate,
                    adam_beta1=betas[0],
                    adam_beta2=betas[1],
                    max_grad_norm=gradient_clip,
                    loss_type="dapo",
                    epsilon=0.2,
                    epsilon_high=0.28,
                    beta=0.0,
                    temperature=1.0,
                    use_cpu=on_cpu,
                    bf16=not on_cpu,
                    gradient_checkpointing=knobs.checkpointing,
                    report_to="none",
                    save_strategy="no",
                    disable_tqdm=True,
                ),
            )
        self.trainer.current_gradient_accumulation_steps = 1
        if knobs.checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=self.trainer.args.gradient_checkpointing_kwargs)
        self.optimizer = self.trainer.create_optimizer()
        self.model = self.trainer.accelerator.prepare_model(self.trainer.model)
        self.model.train()
        prompts = pad_prompts(credited.rollouts.prompts, credited.rollouts.tokens.device)
        mask = credited.rollouts.mask
        self.batch: dict[str, Tensor] = {
            "prompt_ids": prompts.ids,
            "prompt_mask": torch.ones_like(prompts.ids) if prompts.attention is None else prompts.attention,
            "completion_ids": credited.rollouts.tokens,
            "completion_mask": mask.long(),
            "advantages": credited.advantage.float(),
        }

    def score(self) -> Tensor:
        """Old log-probs, as TRL computes them after sampling."""
        batch = self.batch
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        with torch.no_grad(), self.trl.disable_checkpointing(self.trainer.model, self.trainer.args.gradient_checkpointing_kwargs):
            return self.trainer._get_per_token_logps_and_entropies(
                self.trainer.model, ids, attention, batch["completion_ids"].shape[1], batch_size=self.knobs.rows_per_pass
            )[0]

    def loss(self, rows: Sequence[int], old_logp: Tensor, tokens: int) -> Tensor:
        index = torch.tensor(rows, device=old_logp.device)
        inputs = {name: value[index] for name, value in self.batch.items()}
        # TRL divides by a part of the tokens of all steps; given so, that part is the tokens of this one.
        items = torch.tensor(float(tokens * len(self.plan.steps)), device=old_logp.device)
        inputs |= {"old_per_token_logps": old_logp[index], "num_items_in_batch": items}
        with self.trainer.compute_loss_context_manager():
            return self.trainer.compute_loss(self.model, inputs)

    def take(self, old_logp: Tensor) -> list[float]:
        """Gradient norms of the optimizer steps, before clipping."""
        norms: list[float] = []
        for step in self.plan.steps:
            for start in range(0, len(step.rows), self.knobs.rows_per_pass):
                self.trainer.accelerator.backward(self.loss(step.rows[start : start + self.knobs.rows_per_pass], old_logp, step.tokens))
            norm = self.trainer.accelerator.clip_grad_norm_(self.model.parameters(), self.trainer.args.max_grad_norm)
            self.optimizer.step()
            self.model.zero_grad()
            norms.append(float(norm))
        return norms

    def __call__(self) -> list[float]:
        """Run all stages; `stages` then holds the seconds of each. Advantages are given, so there is no credit stage."""
        watch = WaitingStopwatch(self.batch["advantages"].device)
        with watch.stage("score"):
            old_logp = self.score()
        with watch.stage("update"):
            norms = self.take(old_logp)
        self.stages = dict(watch.seconds)
        return norms
