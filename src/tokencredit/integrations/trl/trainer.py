"""TRL's GRPOTrainer with a recipe: its rollouts, its model and its loop; our advantage, credit, plan and objective.

    generations (every rank) -> joined over ranks -> score, advantage, credit, plan -> micro-batches (every rank) -> loss

The plan covers the batch of all ranks and is the same on each; ranks take equal shares of every optimizer step.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

from tokencredit.config.resolve import RecipeSource, read_recipe
from tokencredit.integrations.trl import checkpoint as saved
from tokencredit.integrations.trl.batch import PlannedBatch, Rows, as_rollouts, join_ranks, planned_micro_batches
from tokencredit.integrations.trl.config import optimizer_steps, refuse_separate_processes, settle
from tokencredit.integrations.trl.loss import IMAGES, CreditLossTrainer
from tokencredit.integrations.trl.scoring import PassRecorder, ScoringPass, end_tokens, head_of
from tokencredit.integrations.trl.self_test import check_credit_reaches_gradient
from tokencredit.pipeline.credit import BatchEvidence, CreditPipeline, MethodState, ModelFacts, OwnRows
from tokencredit.pipeline.distributed import SINGLE_PROCESS, ProcessGroup, TorchProcessGroup
from tokencredit.pipeline.metrics import credit_metrics, state_metrics
from tokencredit.seeds import derive_seed
from tokencredit.types import TokenScores


class TokenColumn(list[float]):
    """One number per token in TRL's table of completions: the file holds all values, the printed table only their range."""

    def __str__(self) -> str:
        return f"{min(self):+.2f} to {max(self):+.2f}" if self else "no token"


class CreditGRPOTrainer(CreditLossTrainer):
    """`GRPOTrainer(..., recipe="delta")`; a recipe is a name, a TOML file, a mapping of differences or a `Recipe`."""

    def __init__(
        self, model: Any, reward_funcs: Any = None, args: GRPOConfig | None = None, *rest: Any, recipe: RecipeSource, **named: Any
    ):
        settings = settle(GRPOConfig() if args is None else args, read_recipe(recipe))
        self._passes: PassRecorder | None = None
        super().__init__(model, reward_funcs, settings.args, *rest, **named)
        self.recipe = settings.recipe
        self.stage_state = MethodState()
        self.credit_pipeline = CreditPipeline(self.recipe, max_new_tokens=self.max_completion_length, temperature=self.temperature)
        refuse_separate_processes(self.accelerator.num_processes)
        several = self.accelerator.num_processes > 1
        self.ranks: ProcessGroup = TorchProcessGroup(device=self.accelerator.device) if several else SINGLE_PROCESS
        check_credit_reaches_gradient(self, self.credit_pipeline.objective)

    def _calculate_rewards(self, *given: Any) -> Tensor:
        self._rewards_per_func: Tensor = super()._calculate_rewards(*given)
        return self._rewards_per_func

    def _get_per_token_logps_and_entropies(self, model: Any, *given: Any, **named: Any) -> Any:
        """While a batch is scored, TRL's own forward pass also computes entropies and, where needed, keeps hidden states."""
        if self._passes is None or model is not self.model:
            return super()._get_per_token_logps_and_entropies(model, *given, **named)
        with self._passes.watching(self):
            found = super()._get_per_token_logps_and_entropies(model, *given, **{**named, "compute_entropy": True})
        self._passes.keep(found[0], found[1])
        return found

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Any:
        self._passes = PassRecorder(keep_hidden=self.credit_pipeline.keeps_hidden)
        try:
            rows: Rows = super()._generate_and_score_completions(inputs)
            scored = self._scored(rows)
        finally:
            self._passes = None
        return self._credit(rows, scored)

    def _scored(self, rows: Rows) -> ScoringPass | None:
        """Log-probs, entropies and hidden states: from TRL's pass for old log-probs, from our own pass, or None if nothing reads them."""
        assert self._passes is not None
        if "old_per_token_logps" in rows:
            return self._passes.first
        if not self._passes.needed_by(self.recipe):
            return None
        self._passes.forget()
        with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            self._pass(self.model, rows, batch_size=self.args.per_device_train_batch_size)
        return self._passes.first

    def _credit(self, rows: Rows, scored_pass: ScoringPass | None) -> PlannedBatch:
        training = self.model.training
        local, first = len(rows["completion_ids"]), self.ranks.index * len(rows["completion_ids"])
        for gone in ("advantages", "num_items_in_batch"):
            rows.pop(gone)
        if scored_pass is not None:
            rows |= {"scored_logp": scored_pass.logp, "entropy": scored_pass.entropy}
        joined = join_ranks(split_pixel_values_by_grid(rows), self.ranks, pad_token=self._tokenizer.pad_token_id)
        group_size = self.num_generations if training else self.num_generations_eval
        rollouts = as_rollouts(
            joined, group_size=group_size, end_tokens=end_tokens(self), own_prompts=self.environment_factories is not None
        )
        unknown = torch.zeros(rollouts.mask.shape, device=rollouts.mask.device)
        logp, entropy = (joined.get(name, unknown).float().where(rollouts.mask, 0.0) for name in ("scored_logp", "entropy"))
        scores = TokenScores(logp, entropy, None if scored_pass is None else scored_pass.hidden)
        head = head_of(self) if getattr(self.recipe.credit, "proxy", "row") != "row" else None
        own = torch.arange(first, first + local, device=rollouts.mask.device)
        credited, state = self.credit_pipeline.credit(
            rollouts,
            self._score(),
            BatchEvidence(scores, joined.get("ref_per_token_logps"), model=ModelFacts(head, end_tokens(self))),
            self.stage_state,
            seed=derive_seed(self.args.seed, "credit", self._batches_used),
            own=OwnRows(own, self.ranks) if self.ranks.count > 1 else None,
        )
        cost = (joined["prompt_mask"].sum(-1) + joined["completion_mask"].sum(-1)).tolist()
        plan = self.credit_pipeline.plan(
            credited,
            optimizer_steps=optimizer_steps(self.args) if training else 1,
            max_tokens=max(1, max(cost)) * len(cost),
            cost=cost,
            seed=derive_seed(self.args.seed, "plan", self._batches_used),
        )
        if training:
            self.stage_state = state
        batch = PlannedBatch(joined, credited, plan, cost, on_policy="old_per_token_logps" not in joined)
        self._log_batch(batch, "train" if training else "eval", state)
        return batch

    @property
    def _passes_per_batch(self) -> int:
        """Micro-steps that one batch of generations is used for."""
        return self.args.steps_per_generation * self.num_iterations

    @property
    def _batches_used(self) -> int:
        return self._step // self._passes_per_batch

    def _score(self) -> Tensor:
        """Weighted sum over reward functions; NaN where each of them returned None."""
        weighted = (self._rewards_per_func * self.reward_weights.to(self._rewards_per_func.device)).nansum(1)
        return weighted.where(~self._rewards_per_func.isnan().all(1), torch.nan).float()

    def _log_batch(self, batch: PlannedBatch, mode: str, state: MethodState) -> None:
        """Log metrics, and replace TRL's advantages in the table of completions by the ones used for training."""
        for name, value in (credit_metrics(batch.credited, batch.plan) | state_metrics(state)).items():
            self._metrics[mode][f"tokencredit/{name}"].append(float(value))
        advantages, rows = batch.credited.advantage.tolist(), len(batch.cost)
        for _ in range(min(rows, len(self._logs["advantages"]))):
            self._logs["advantages"].pop()
        self._logs["advantages"].extend(advantages)
        if self.log_completions:
            mask = batch.credited.rollouts.mask
            credit = (row[inside].tolist() for row, inside in zip(batch.credited.credit, mask, strict=True))
            self._logs["extra"]["token_credit"].extend(TokenColumn(round(value, 5) for value in row) for row in credit)

    def _prepare_inputs(self, generation_batch: Any) -> Rows:
        if not self.model.training:
            return self._micro_batches(self._generate_and_score_completions(generation_batch), accumulated=1)[0]
        slices = self.args.steps_per_generation
        if self._step % self._passes_per_batch == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = self._micro_batches(batch, accumulated=self.args.gradient_accumulation_steps)
        return self._buffered_inputs[self._step % slices]

    def _micro_batches(self, batch: PlannedBatch, *, accumulated: int) -> list[Rows]:
        made = planned_micro_batches(
            batch,
            self.credit_pipeline.objective,
            self.ranks,
            accumulated=accumulated,
            steps=optimizer_steps(self.args) if self.model.training else 1,
            seed=derive_seed(self.args.seed, "objective", self._batches_used),
            trimmed=self.pad_to_multiple_of is None and not any(name in batch.rows for name in IMAGES),
        )
        return [unsplit_pixel_values_by_grid(rows) for rows in made]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        between = self._step % self._passes_per_batch == 0
        saved.save(
            folder,
            rank=self.ranks.index,
            ranks=self.ranks.count,
            recipe=self.recipe,
            args=self.args,
            step=self._step,
            state=self.stage_state,
            buffer=None if between else self._buffered_inputs,
        )

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._step, self.stage_state, self._buffered_inputs = saved.load(
                Path(checkpoint),
                rank=self.ranks.index,
                ranks=self.ranks.count,
                recipe=self.recipe,
                args=self.args,
                device=self.accelerator.device,
            )
