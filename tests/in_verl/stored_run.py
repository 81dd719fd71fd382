"""Stored rollouts pushed through verl's own worker, FSDP2 engine and trainer code; run under torchrun, without Ray.

Every process is driver and worker at once: all of them run the trainer's code on the whole batch, and each trains its share.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import torch
import verl
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

from conformance.cases import Case
from conformance.outcome import BatchOutcome, Outcome, batch_outcome
from conformance.reference import SEED
from conformance.stored import GROUP_SIZE, LIMIT, StoredBatch, base_policy, stored_batches
from in_verl.row_queue import Queue, joined
from tokencredit.config.resolve import read_recipe
from tokencredit.integrations.verl import trainer as ours
from tokencredit.integrations.verl.worker import CreditEngine, CreditLoss
from tokencredit.pipeline.credit import CreditPipeline, MethodState
from verl_cpu.command import Shape, overrides
from verl_cpu.scene import make_scene

assert "tokencredit" in ADV_ESTIMATOR_REGISTRY, "the plug-in was not loaded by verl"


def hydra_config(folder: Path, shape: Shape, *extra: str) -> DictConfig:
    """What `python -m verl.trainer.main_ppo` would make of the same words."""
    scene = make_scene(folder / "scene", problems=8)
    words = [word for word in overrides(scene, shape) if not word.startswith("hydra.")]
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", [*words, *extra])


def make_worker(config: DictConfig, engine: type = CreditEngine) -> TrainingWorker:
    """As verl's ActorRolloutRefWorker makes its actor."""
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    actor.model_config = model
    actor.engine.use_dynamic_bsz = False
    actor.engine.micro_batch_size_per_gpu = config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
    actor.engine.infer_micro_batch_size_per_gpu = config.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    worker.reset()
    assert type(worker.engine) is engine, f"verl chose {type(worker.engine).__name__}"
    return worker


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


class Workers:
    """The worker group as the trainer sees it: a batch is cut into equal shares, in order."""

    def __init__(self, worker: TrainingWorker, queue: Queue) -> None:
        self.worker, self.queue = worker, queue
        self.rank, self.count = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._dispatch_info = {"actor": list(range(self.count))}
        self.loss: list[float] = []
        self.gradients: list[Tensor] = []
        engine = worker.engine
        self.first = {name: p.detach().clone() for name, p in engine.module.named_parameters()}
        step, train = engine.optimizer_step, engine.train_batch

        def watched_step() -> Any:
            found = {name: _whole(torch.zeros_like(p) if p.grad is None else p.grad) for name, p in engine.module.named_parameters()}
            self.gradients.append(torch.cat([found[name].detach().float().flatten() for name in sorted(found)]))
            return step()

        def watched_train(data: TensorDict, loss_function: Any) -> Any:
            outputs = train(data, loss_function)
            loss = torch.tensor(sum(outputs["loss"]), dtype=torch.float64)
            torch.distributed.all_reduce(loss)
            self.loss.append(float(loss) / self.count)
            return outputs

        engine.optimizer_step, engine.train_batch = watched_step, watched_train

    def start(self, learning_rate: float) -> None:
        self._set_weights(self.first)
        engine = self.worker.engine
        engine.optimizer = torch.optim.SGD(engine.module.parameters(), lr=learning_rate)
        engine.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(engine.optimizer, factor=1.0)
        engine.optimizer_config.clip_grad = 1e9
        self.loss, self.gradients = [], []

    def cut(self, *, rows: int, tokens: int | None = None) -> None:
        """Into micro-batches of so many rows, or as many as fit: verl then changes their order, too."""
        settings = self.worker.engine_config
        settings.use_dynamic_bsz = tokens is not None
        settings.micro_batch_size_per_gpu = settings.infer_micro_batch_size_per_gpu = rows
        settings.max_token_len_per_gpu = settings.infer_max_token_len_per_gpu = tokens

    def _set_weights(self, weights: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.worker.engine.module.named_parameters():
                parameter.copy_(weights[name])

    @property
    def weights(self) -> Tensor:
        found = {name: _whole(p.detach()) for name, p in self.worker.engine.module.named_parameters()}
        return torch.cat([found[name].float().flatten() for name in sorted(found)])

    def set_loss_fn(self, loss: Any) -> None:
        self.worker.set_loss_fn(loss)

    def _share(self, batch: KVBatchMeta) -> tuple[list[str], TensorDict]:
        size = len(batch) // self.count
        keys = batch.keys[self.rank * size : (self.rank + 1) * size]
        fields = batch.fields or list(self.queue.rows[keys[0]])
        data = self.queue.kv_batch_get(keys=keys, partition_id="train", select_fields=fields)
        tu.assign_non_tensor(data, **batch.extra_info)
        return keys, data

    def compute_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        keys, data = self._share(batch)
        output = self.worker.infer_batch(data)
        named = {name: output[name] for name in output.keys()}  # noqa: SIM118 (a TensorDict iterates over rows)
        mine = {name: list(value.unbind()) for name, value in named.items() if isinstance(value, Tensor)}
        parts: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(parts, (keys, mine))
        for part_keys, fields in parts:
            content = TensorDict({name: joined(rows) for name, rows in fields.items()}, batch_size=len(part_keys))
            self.queue.kv_batch_put(keys=part_keys, partition_id="train", fields=content)
        return batch

    def compute_ref_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        now = {name: p.detach().clone() for name, p in self.worker.engine.module.named_parameters()}
        self._set_weights(self.first)
        self.compute_log_prob(batch)
        self._set_weights(now)
        return batch

    def update_actor(self, batch: KVBatchMeta) -> Any:
        _, data = self._share(batch)
        return self.worker.train_mini_batch(data)


def as_rank_0(config: DictConfig, engine: type = CreditEngine) -> Workers:
    """A worker in a process that was not started as one; what it starts must not take itself for a worker."""
    with patch.dict(os.environ, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0"):
        return Workers(make_worker(config, engine), Queue())


class StoredTrainer(ours.CreditTrainer):
    """The trainer without what needs Ray: it is handed rollouts instead of asking for them."""

    def __init__(self, config: DictConfig, workers: Workers) -> None:
        self.settings = ours.settle(config)
        self.config = config
        chosen = self.settings
        self.credit_pipeline = CreditPipeline(chosen.recipe, max_new_tokens=chosen.max_new_tokens, temperature=chosen.temperature)
        self.stage_state = MethodState()
        self.actor_rollout_wg = self.ref_policy_wg = workers
        self.use_reference_policy, self.use_critic, self.ref_in_actor = config.actor_rollout_ref.actor.use_kl_loss, False, False
        self.tokenizer = base_policy().tokenizer
        self.global_steps = 1
        self.made: list[BatchOutcome] = []
        workers.set_loss_fn(CreditLoss(chosen.recipe, max_new_tokens=chosen.max_new_tokens))

    def _plan(self, batch: Any, data: Any, real: Any, credited: Any, metrics: Any, number: int) -> Any:
        with patch.object(self.credit_pipeline, "plan", wraps=self.credit_pipeline.plan) as planner:
            planner.side_effect = lambda *given, **named: self._noted(
                credited, type(self.credit_pipeline).plan(self.credit_pipeline, *given, **named)
            )
            return super()._plan(batch, data, real, credited, metrics, number)

    def _noted(self, credited: Any, plan: Any) -> Any:
        self.made.append(batch_outcome(credited, plan))
        return plan


def put_rollouts(queue: Queue, stored: StoredBatch) -> list[str]:
    """As verl's agent loop writes them, under its kind of keys."""
    keys = []
    columns = (stored.prompt_ids, stored.response_ids, stored.written, stored.sampler_logp, stored.score)
    for row, (prompt, response, written, sampler_logp, score) in enumerate(zip(*columns, strict=True)):
        group, session = divmod(row, GROUP_SIZE)
        key = f"uid{group:03d}_{session}_0"
        ids = torch.tensor([*prompt, *response])
        given = torch.zeros(len(response))
        given[-1] = score
        mask = torch.tensor(written).long()
        queue.rows[key] = {
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "prompts": torch.tensor(prompt),
            "responses": torch.tensor(response),
            "response_mask": mask,
            "loss_mask": mask.clone(),
            "rm_scores": given,
            "rollout_log_probs": torch.tensor(sampler_logp),
            "uid": f"uid{group:03d}",
        }
        queue.tags[key] = {"seq_len": len(ids), "is_padding": False}
        keys.append(key)
    return keys


@contextmanager
def in_place_of_the_queue(queue: Queue) -> Iterator[None]:
    with ExitStack() as stack:
        for module in ("verl.trainer.ppo.v1.trainer_base", "verl.trainer.ppo.padding_utils", "tokencredit.integrations.verl.trainer"):
            stack.enter_context(patch(f"{module}.tq", queue))
        # Every process fills up the batch for itself; the names must be the same.
        stack.enter_context(patch("verl.trainer.ppo.padding_utils.uuid.uuid4", lambda: UUID(int=0)))
        yield


def credit_stored(trainer: StoredTrainer, queue: Queue, batch: StoredBatch, metrics: dict[str, Any]) -> KVBatchMeta:
    """What verl's trainer does with a batch before it trains on it."""
    queue.rows.clear()
    queue.tags.clear()
    meta = queue.batch(put_rollouts(queue, batch))
    meta.extra_info["temperature"] = trainer.settings.temperature
    meta = trainer._balance_batch(meta, metrics)
    meta = trainer._compute_old_log_prob(meta, metrics)
    if trainer.use_reference_policy:
        meta = trainer._compute_ref_log_prob(meta, metrics)
    return trainer._compute_advantage(meta, metrics)


def run_stored(case: Case, workers: Workers, config: DictConfig, queue: Queue) -> Outcome:
    workers.start(case.learning_rate)
    trainer = StoredTrainer(config, workers)
    with in_place_of_the_queue(queue):
        for batch in stored_batches(groups=case.groups, tools=case.tools):
            trainer._update_actor(credit_stored(trainer, queue, batch, {}), {})
            trainer.global_steps += 1
    return Outcome(tuple(trainer.made), tuple(workers.loss), torch.stack(workers.gradients), workers.weights)


def case_overrides(case: Case) -> list[str]:
    """A recipe on verl's command line."""

    def words(prefix: str, table: Any) -> list[str]:
        found = []
        for name, value in table.items():
            found += words(f"{prefix}.{name}", value) if isinstance(value, dict) else [f"+{prefix}.{name}={value}"]
        return found

    read_recipe(case.recipe)
    return [
        *words("tokencredit", dict(case.recipe)),
        f"+tokencredit.seed={SEED}",
        "algorithm.adv_estimator=tokencredit",
        "trainer.v1.trainer_mode=tokencredit",
        f"actor_rollout_ref.rollout.temperature={case.temperature}",
        f"actor_rollout_ref.actor.ppo_epochs={case.iterations}",
    ]


def shape_of(case: Case, ranks: int) -> Shape:
    return Shape(
        ranks=ranks,
        prompts=-(-case.groups // case.optimizer_steps) * case.optimizer_steps,
        group_size=GROUP_SIZE,
        mini_batch_prompts=-(-case.groups // case.optimizer_steps),
        max_new_tokens=LIMIT,
    )


def ranks_here() -> int:
    return int(os.environ["WORLD_SIZE"])
