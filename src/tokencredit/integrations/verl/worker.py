"""What runs in verl's workers: the loss of a recipe, and an engine that keeps hidden states and knows whole optimizer steps.

The engine is verl's own FSDP engine; it behaves differently only where our trainer requests it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name, get_vendor
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.utils.padding import no_padding_2_padding

from tokencredit.config import Recipe
from tokencredit.errors import GuardError
from tokencredit.forward.padded import watching_head
from tokencredit.objective import TokenInputs
from tokencredit.objective.base import importance_ratio
from tokencredit.objective.kappa import token_kappa
from tokencredit.pipeline.build import AggregatedObjective, build_objective
from tokencredit.pipeline.credit import BatchEvidence, CreditPipeline, ModelFacts, own_part
from tokencredit.pipeline.distributed import TorchProcessGroup
from tokencredit.pipeline.microbatch import MicroBatch, micro_batch_loss, step_statistic
from tokencredit.types import Rollouts, TokenScores

FIELD = "tokencredit_"
"""Before the name of every field that is ours."""
REQUEST = f"{FIELD}asked"
KEEP_HIDDEN, ASSIGN = "keep hidden states", "assign credit"
PER_TOKEN = ("credit", "weight", "mask", "correction")
PER_ROW = ("row", "group", "advantage", "seed")
NO_ENGINE = "the plug-in is not loaded in them, or another engine is"


class CreditLoss:
    """A loss function as verl's workers call it; travels to them with the recipe and builds the objective there."""

    def __init__(self, recipe: Recipe, *, max_new_tokens: int) -> None:
        self.recipe, self.max_new_tokens = recipe, max_new_tokens
        self.statistic: Any = None

    @cached_property
    def built(self) -> AggregatedObjective:
        return build_objective(self.recipe, max_length=self.max_new_tokens)

    def micro_batch(self, logp: Tensor, data: TensorDict) -> MicroBatch:
        names = [f"{FIELD}{name}" for name in PER_TOKEN + PER_ROW if f"{FIELD}{name}" in data]
        names += [name for name in ("old_log_probs", "ref_log_prob") if name in data]
        given = data.select(*names).to_padded_tensor()
        width = logp.shape[1]
        token = {name: given[f"{FIELD}{name}"][:, :width] for name in PER_TOKEN if f"{FIELD}{name}" in names}
        row = {name: given[f"{FIELD}{name}"] for name in PER_ROW}
        inputs = TokenInputs(
            logp=logp.detach(),
            old_logp=given["old_log_probs"][:, :width].to(logp.dtype),
            credit=token["credit"].to(logp.dtype),
            mask=token["mask"].bool(),
            group=row["group"],
            reference_logp=given["ref_log_prob"][:, :width].to(logp.dtype) if "ref_log_prob" in names else None,
            advantage=row["advantage"].to(logp.dtype),
            row=row["row"],
            seed=int(row["seed"][0]),
            correction=token["correction"].to(logp.dtype) if "correction" in token else None,
        )
        return MicroBatch(inputs, token["weight"].to(logp.dtype), 1.0)

    def __call__(self, model_output: dict[str, Any], data: TensorDict, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
        logp = no_padding_2_padding(model_output["log_probs"], data)
        batch, objective = self.micro_batch(logp, data), self.built.objective
        if objective.statistic is not None and self.statistic is None:
            raise GuardError(f"verl's workers have no statistic of the optimizer step: {NO_ENGINE}")
        loss = micro_batch_loss(objective, batch, logp, self.statistic)
        return loss * data["dp_size"], self._metrics(batch, loss)

    @torch.no_grad()
    def _metrics(self, batch: MicroBatch, loss: Tensor) -> dict[str, Any]:
        inputs = batch.inputs
        kappa = token_kappa(self.built.objective, inputs, self.statistic, batch.weight, denominator=1.0).kappa
        has_credit = (inputs.credit != 0) & inputs.mask
        tokens = inputs.mask.sum().clamp(min=1)
        means = {
            "actor/silenced_share": (has_credit & (kappa == 0)).sum() / has_credit.sum().clamp(min=1),
            "actor/ratio_mean": (importance_ratio(inputs.logp, inputs.old_logp) * inputs.mask).sum() / tokens,
        }
        metrics = Metric.from_dict({name: float(value) for name, value in means.items()}, aggregation=AggregationType.MEAN)
        return {**metrics, "actor/pg_loss": Metric(value=loss.detach(), aggregation=AggregationType.SUM)}


class CreditEngine(FSDPEngineWithLMHead):
    _kept: dict[int, Tensor]

    def forward_step(self, micro_batch: TensorDict, loss_function: Any, forward_only: bool) -> Any:
        if tu.get_non_tensor_data(data=micro_batch, key=REQUEST, default=None) != KEEP_HIDDEN:
            return super().forward_step(micro_batch, loss_function, forward_only)
        with watching_head(self.module) as seen:
            found = super().forward_step(micro_batch, loss_function, forward_only)
        self._kept |= hidden_of_responses(seen[0], micro_batch)
        return found

    def forward_backward_batch(self, data: TensorDict, loss_function: Any, forward_only: bool = False) -> Any:
        request = tu.get_non_tensor_data(data=data, key=REQUEST, default=None)
        if request == KEEP_HIDDEN:
            self._kept = {}
        if request == ASSIGN:
            return self._assign(data)
        if isinstance(loss_function, CreditLoss) and not forward_only:
            loss_function.statistic = self._statistic(data, loss_function)
        return super().forward_backward_batch(data, loss_function, forward_only)

    def _statistic(self, data: TensorDict, loss: CreditLoss) -> Any:
        """One pass without gradient over the optimizer step before the one that trains, where the objective needs it."""
        if loss.built.objective.statistic is None:
            return None
        seen: list[TokenInputs] = []

        def record(model_output: dict[str, Any], data: TensorDict, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
            logp = no_padding_2_padding(model_output["log_probs"], data)
            seen.append(loss.micro_batch(logp, data).inputs)
            return logp.new_zeros(()), {}

        with torch.no_grad():
            super().forward_backward_batch(data, record, forward_only=True)
        return step_statistic(loss.built.objective, seen, self._ranks())

    def _ranks(self) -> TorchProcessGroup:
        return TorchProcessGroup(self.get_data_parallel_group(), device=get_device_name())

    def _assign(self, data: TensorDict) -> dict[str, Any]:
        """Coefficients of this rank's tokens from the hidden states kept before; statistics are merged over all ranks."""
        recipe = Recipe.model_validate_json(tu.get_non_tensor_data(data=data, key=f"{FIELD}recipe", default=None))
        seed = tu.get_non_tensor_data(data=data, key=f"{FIELD}step_seed", default=0)
        pipeline = CreditPipeline(recipe, max_new_tokens=1, temperature=float(data["temperature"]))
        names = [f"{FIELD}{name}" for name in ("row", "group", "advantage", "mask")] + ["responses", "old_log_probs", "entropy"]
        # As verl does with a micro-batch: the hidden states are on the device already.
        data = data.to(get_device_id())
        given = data.select(*names).to_padded_tensor()
        rows, mask = given[f"{FIELD}row"], given[f"{FIELD}mask"].bool()
        hidden = torch.nn.utils.rnn.pad_sequence([self._kept[row] for row in rows.tolist()], batch_first=True)
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, mask.shape[1] - hidden.shape[1]))
        rollouts = Rollouts(
            # Credit reads no prompt, and whether a response was cut was settled on the driver.
            prompts=((),) * len(rows),
            tokens=given["responses"],
            mask=mask,
            group=given[f"{FIELD}group"],
            behavior_logp=torch.zeros(mask.shape, device=mask.device),
            finished=torch.ones_like(rows, dtype=torch.bool),
        )
        logp, entropy = (given[name].float().where(mask, 0.0) for name in ("old_log_probs", "entropy"))
        head = self._head() if recipe.credit.needs_head else None
        evidence = BatchEvidence(TokenScores(logp, entropy, hidden), model=ModelFacts(head))
        inputs = pipeline.credit_inputs(rollouts, given[f"{FIELD}advantage"], evidence, seed=seed)
        ranks = self._ranks()
        outcome = pipeline.assign(own_part(inputs, torch.arange(len(rows), device=rows.device), ranks), ranks=ranks)
        self._kept = {}
        coefficient = outcome.coefficient
        assert coefficient is not None
        return {"model_output": {f"{FIELD}coefficient": over_sequences(coefficient, data)}, "loss": [0.0], "metrics": {}}

    def _head(self) -> Tensor:
        weight = self.module.get_output_embeddings().weight
        return (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach()


def _spans(data: TensorDict) -> Iterator[tuple[int, int, int]]:
    """For each row where its sequence starts in the flat batch, and which of its positions predict the response."""
    offsets = data["input_ids"].offsets().tolist()
    lengths = data["responses"].offsets().diff().tolist()
    for start, end, length in zip(offsets, offsets[1:], lengths, strict=False):
        yield start, end - start - length - 1, end - start - 1


def hidden_of_responses(states: Tensor, data: TensorDict) -> dict[int, Tensor]:
    """By row name, what the LM head was given where each response token is predicted; flat (1, tokens) or padded batches."""
    kept = {}
    for place, (row, (start, first, last)) in enumerate(zip(data[f"{FIELD}row"].tolist(), _spans(data), strict=True)):
        # A padded batch of one row is flat, too: its sequence starts at 0.
        own = states[0, start + first : start + last] if len(states) == 1 else states[place, first:last]
        kept[row] = own.detach().clone()
    return kept


def over_sequences(value: Tensor, data: TensorDict) -> Tensor:
    """Responses x tokens as verl's models answer: one entry per position of prompt and response, at the one that predicts."""
    ids = data["input_ids"]
    whole = value.new_zeros(len(ids.values()))
    for row, (start, first, last) in zip(value, _spans(data), strict=True):
        whole[start + first : start + last] = row[: last - first]
    return torch.nested.nested_tensor_from_jagged(whole, ids.offsets())


def register() -> None:
    """For the device and vendor verl would look up here; an entry with a vendor goes before verl's own."""
    device = os.environ.get("VERL_ENGINE_DEVICE") or get_device_name()
    vendor = os.environ.get("VERL_ENGINE_VENDOR") or get_vendor()
    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=device, vendor=vendor)(CreditEngine)


@contextmanager
def requesting(extra_info: dict[str, Any], **requests: Any) -> Iterator[None]:
    """Add requests to the workers for one call, and for no later one."""
    extra_info |= requests
    try:
        yield
    finally:
        for name in requests:
            extra_info.pop(name, None)
