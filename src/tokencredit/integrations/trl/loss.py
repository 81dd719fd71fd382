"""The loss of a micro-batch in TRL: TRL's forward pass, our objective, and statistics of the full optimizer step."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from tokencredit.integrations.trl.batch import Rows
from tokencredit.objective.base import importance_ratio
from tokencredit.objective.kappa import token_kappa
from tokencredit.pipeline.credit import CreditPipeline
from tokencredit.pipeline.distributed import ProcessGroup
from tokencredit.pipeline.microbatch import MicroBatch, micro_batch_loss, step_statistic

IMAGES = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


class CreditLossTrainer(GRPOTrainer):
    """The part of `CreditGRPOTrainer` that computes the loss."""

    credit_pipeline: CreditPipeline
    ranks: ProcessGroup
    _statistic: Any = None

    def _pass(self, model: Any, rows: Rows, **named: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        ids, mask = (torch.cat([rows[f"prompt_{name}"], rows[f"completion_{name}"]], 1) for name in ("ids", "mask"))
        images = {name: rows[name] for name in IMAGES if rows.get(name) is not None}
        return self._get_per_token_logps_and_entropies(model, ids, mask, rows["completion_ids"].shape[1], **images, **named)

    def _compute_loss(self, model: Any, inputs: Rows) -> Tensor:
        if "tokencredit" not in inputs:
            raise RuntimeError("the loss was given a batch without credit; this trl does not call _prepare_inputs before its loss")
        training, objective = self.model.training, self.credit_pipeline.objective.objective
        logp, entropy, aux_loss = self._pass(model, inputs, compute_entropy=True, compute_aux_loss=self.aux_loss_enabled)
        batch: MicroBatch = inputs["tokencredit"]
        if inputs.get("on_policy"):
            batch = batch._replace(inputs=batch.inputs._replace(old_logp=logp.detach()))
        batch = batch._replace(inputs=batch.inputs._replace(logp=logp.detach()))
        statistic = self._step_statistic(model, batch) if training else step_statistic(objective, [batch.inputs], self.ranks)
        loss = micro_batch_loss(objective, batch, logp, statistic) * self.ranks.count
        self._log_loss(batch, statistic, entropy, "train" if training else "eval")
        if self.aux_loss_enabled:
            accumulated = self.current_gradient_accumulation_steps if training else 1
            loss = loss + self.router_aux_loss_coef * aux_loss / accumulated
        return loss

    def _step_statistic(self, model: Any, batch: MicroBatch) -> Any:
        """Computed at the first micro-batch of an optimizer step from all its micro-batches; the later ones need an extra pass."""
        objective, accumulated = self.credit_pipeline.objective.objective, self.args.gradient_accumulation_steps
        if objective.statistic is None or self._step % accumulated:
            return self._statistic
        assert self._buffered_inputs is not None
        start = self._step % self.args.steps_per_generation
        later = self._buffered_inputs[start + 1 : start + accumulated]
        with (
            torch.no_grad(),
            disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs) if later else nullcontext(),
        ):
            others = [self._with_logp(rows, self._pass(model, rows)[0]) for rows in later]
        self._statistic = step_statistic(objective, [batch.inputs, *others], self.ranks)
        return self._statistic

    def _with_logp(self, rows: Rows, logp: Tensor) -> Any:
        inputs = rows["tokencredit"].inputs
        return inputs._replace(logp=logp, old_logp=logp if rows.get("on_policy") else inputs.old_logp)

    @torch.no_grad()
    def _log_loss(self, batch: MicroBatch, statistic: Any, entropy: Tensor, mode: str) -> None:
        """Metrics of the loss over the tokens of all ranks."""
        inputs, mask = batch.inputs, batch.inputs.mask
        kappa = token_kappa(self.credit_pipeline.objective.objective, inputs, statistic, batch.weight, denominator=batch.denominator).kappa
        has_credit = (inputs.credit != 0) & mask
        sums = [(entropy * mask).sum(), (importance_ratio(inputs.logp, inputs.old_logp) * mask).sum(), mask.sum()]
        sums += [(has_credit & (kappa == 0)).sum(), has_credit.sum()]
        if inputs.reference_logp is not None:
            sums.append(((inputs.logp - inputs.reference_logp) * mask).sum())
        entropies, ratios, tokens, silenced, credited, *kl = self.accelerator.reduce(torch.stack([x.double() for x in sums])).tolist()
        row = {"entropy": entropies / max(1, tokens), "tokencredit/ratio_mean": ratios / max(1, tokens)}
        row["tokencredit/silenced_share"] = silenced / max(1, credited)
        row |= {"kl": kl[0] / max(1, tokens)} if kl else {}
        for name, value in row.items():
            self._metrics[mode][name].append(value)
