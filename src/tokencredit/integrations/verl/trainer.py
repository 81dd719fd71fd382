"""verl's synchronous trainer with a recipe: its rollouts, workers and loop; our advantage, credit, plan and loss."""

import json
import os
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_from_nested, response_to_nested

from tokencredit.errors import ConfigError, GuardError
from tokencredit.integrations.support import MODE
from tokencredit.integrations.verl.batch import DriverBatch, arrange, credit_batch
from tokencredit.integrations.verl.settings import settle
from tokencredit.integrations.verl.worker import ASSIGN, FIELD, KEEP_HIDDEN, NO_ENGINE, REQUEST, CreditLoss, requesting
from tokencredit.pipeline.credit import CreditPipeline, MethodState
from tokencredit.pipeline.metrics import credit_metrics, state_metrics
from tokencredit.seeds import derive_seed
from tokencredit.types import Credited

STATE = "tokencredit.json"
ALWAYS = ("prompts", "responses", "response_mask", "rm_scores", "old_log_probs", "entropy")


class CreditTrainer(PPOTrainerSync):
    def __init__(self, config: DictConfig) -> None:
        self.settings = settle(config)
        # Much of verl compares the mode by name; this one is synchronous.
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        chosen = self.settings
        self.credit_pipeline = CreditPipeline(chosen.recipe, max_new_tokens=chosen.max_new_tokens, temperature=chosen.temperature)
        self.stage_state = MethodState()

    def on_init_end(self) -> None:
        self.actor_rollout_wg.set_loss_fn(CreditLoss(self.settings.recipe, max_new_tokens=self.settings.max_new_tokens))
        super().on_init_end()

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if not self.credit_pipeline.keeps_hidden:
            return super()._compute_old_log_prob(batch, metrics)
        batch = self._put(batch, {"row": torch.arange(len(batch))})
        with requesting(batch.extra_info, **{REQUEST: KEEP_HIDDEN}):
            return super()._compute_old_log_prob(batch, metrics)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        optional = [name for name, wanted in (("rollout_log_probs", self._corrects), ("ref_log_prob", self.use_reference_policy)) if wanted]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[*ALWAYS, *optional])
        # By name and not by place: verl's places depend on the number of ranks.
        real = sorted((row for row, tag in enumerate(batch.tags) if not tag.get("is_padding", False)), key=batch.keys.__getitem__)
        given, number = self._driver_batch(batch, data, real), self.global_steps - 1

        def request_coefficients(advantage: Tensor) -> Tensor:
            return self._coefficients(batch, data, real, given, advantage, seed=derive_seed(self.settings.seed, "credit", number))

        credited, self.stage_state = credit_batch(
            self.credit_pipeline,
            given,
            self.stage_state,
            seed=derive_seed(self.settings.seed, "credit", number),
            end_tokens=(self.tokenizer.eos_token_id,),
            request_coefficients=request_coefficients,
        )
        return self._plan(batch, data, real, credited, metrics, number)

    @property
    def _corrects(self) -> bool:
        return self.settings.recipe.correction.enabled

    def _driver_batch(self, batch: Any, data: TensorDict, real: list[int]) -> DriverBatch:
        names = [key.rsplit("_", 2) for key in batch.keys]
        if any(index != "0" for _, _, index in names):
            raise ConfigError("an agent loop gave several trajectories for one response; recipes compare responses of one trajectory each")
        padded = data.to_padded_tensor()
        rows = torch.tensor(real)
        return DriverBatch(
            uid=[names[row][0] for row in real],
            prompt_length=data["prompts"].offsets().diff()[rows].tolist(),
            tokens=padded["responses"][rows],
            mask=padded["response_mask"][rows],
            score=padded["rm_scores"].sum(-1)[rows],
            old_logp=padded["old_log_probs"][rows],
            entropy=padded["entropy"][rows],
            sampler_logp=padded["rollout_log_probs"][rows] if "rollout_log_probs" in data else None,
            reference_logp=padded["ref_log_prob"][rows] if "ref_log_prob" in data else None,
        )

    def _coefficients(self, batch: Any, data: TensorDict, real: list[int], given: DriverBatch, advantage: Tensor, *, seed: int) -> Tensor:
        """From the workers, which have kept the hidden states of their rows."""
        rows, width = torch.tensor(real), given.mask.shape[1]
        rollouts = given.rollouts((self.tokenizer.eos_token_id,))
        whole = {
            "advantage": torch.zeros(len(batch)).index_copy(0, rows, advantage.float()),
            "group": (-1 - torch.arange(len(batch))).index_copy(0, rows, rollouts.group),
            "mask": torch.zeros(len(batch), width, dtype=torch.bool).index_copy(0, rows, rollouts.loss_mask),
        }
        batch = self._put(batch, whole, data["response_mask"])
        request = {REQUEST: ASSIGN, f"{FIELD}recipe": self.settings.recipe.model_dump_json(), f"{FIELD}step_seed": seed}
        with requesting(batch.extra_info, **request, compute_loss=False, temperature=self.settings.temperature):
            self.actor_rollout_wg.compute_log_prob(batch)
        name = f"{FIELD}coefficient"
        try:
            found = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[name])[name]
        except (KeyError, ValueError):
            raise GuardError(f"verl's workers found no coefficients: {NO_ENGINE}") from None
        return response_from_nested(found, data["response_mask"]).to_padded_tensor(0.0)[rows]

    def _plan(self, batch: Any, data: TensorDict, real: list[int], credited: Credited, metrics: dict[str, Any], number: int) -> Any:
        """Adds the fields that the loss reads to every row, and puts the rows in the plan's order."""
        steps = len(batch) // self.settings.mini_batch_rows
        lengths = (data["prompts"].offsets().diff() + data["responses"].offsets().diff()).tolist()
        # Rows that fill up the batch come after the real ones.
        ordered = real + sorted(set(range(len(batch))) - set(real))
        cost = [lengths[row] for row in ordered]
        plan = self.credit_pipeline.plan(
            credited,
            optimizer_steps=steps,
            max_tokens=max(cost) * len(cost),
            cost=cost[: len(real)],
            seed=derive_seed(self.settings.seed, "plan", number),
        )
        arranged = arrange(
            self.credit_pipeline,
            credited,
            plan,
            rows=len(batch),
            steps=steps,
            ranks=max(self.actor_rollout_wg._dispatch_info["actor"]) + 1,
            cost=cost,
            seed=derive_seed(self.settings.seed, "objective", number),
        )
        batch.reorder(ordered)
        mask = torch.nested.as_nested_tensor([data["response_mask"][row] for row in ordered], layout=torch.jagged)
        spread = response_to_nested(arranged.fields["credit"], mask)
        batch = self._put(batch, arranged.fields, mask, advantages=spread, returns=spread.clone())
        batch.reorder(arranged.order)
        row = credit_metrics(credited, plan) | state_metrics(self.stage_state)
        metrics.update({f"tokencredit/{name}": float(value) for name, value in row.items()})
        return batch

    @staticmethod
    def _put(batch: Any, ours: dict[str, Tensor], mask: Tensor | None = None, **theirs: Tensor) -> Any:
        """The batch with new fields, per row or per token of the response; a worker gets the fields that its batch names."""
        fields = {f"{FIELD}{name}": value if value.dim() == 1 else response_to_nested(value, mask) for name, value in ours.items()}
        content = TensorDict({**fields, **theirs}, batch_size=len(batch))
        written = tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=content)
        written.extra_info = dict(batch.extra_info)
        return written

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "recipe": self.settings.recipe.model_dump(),
            "state": {name: dict(part) for name, part in self.stage_state._asdict().items()},
        }
        half = folder / f"{STATE}.part"
        half.write_text(json.dumps(content))
        os.replace(half, folder / STATE)
        # Last, because verl marks this checkpoint as the latest at the end.
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps == 0:
            return
        path = self.config.trainer.resume_from_path if self.config.trainer.resume_mode == "resume_path" else None
        folder = Path(path or Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}")
        if not (folder / STATE).is_file():
            raise ConfigError(f"checkpoint {folder} has no {STATE}; it was written without a recipe and cannot be resumed with one")
        content = json.loads((folder / STATE).read_text())
        if content["recipe"] != json.loads(json.dumps(self.settings.recipe.model_dump())):
            raise ConfigError(f"checkpoint {folder} was written with another recipe; resume with the same one")
        self.stage_state = MethodState(**content["state"])


def register() -> None:
    register_trainer(MODE)(CreditTrainer)
