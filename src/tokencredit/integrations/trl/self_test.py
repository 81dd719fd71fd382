"""A self-test before training: per-token credit must reach the gradient of this TRL version's loss."""

from typing import Any

import torch

from tokencredit.integrations.support import TESTED, EngineUnavailableError, require
from tokencredit.objective import TokenInputs
from tokencredit.objective.kappa import token_kappa
from tokencredit.pipeline.build import AggregatedObjective
from tokencredit.pipeline.microbatch import MicroBatch, step_statistic

ROWS, TOKENS = 2, 3


def check_credit_reaches_gradient(trainer: Any, built: AggregatedObjective) -> None:
    """Give the trainer's loss made-up log-probs and zero-sum credit, and compare its gradient by each log-prob with ours.

    No model is involved, so it costs nothing and works however the model is sharded. Averaged over the response, zero-sum
    credit would give no gradient at all.
    """
    leaf, batch = _made_up(trainer.accelerator.device, trainer.ranks.index)
    statistic = step_statistic(built.objective, [batch.inputs], trainer.ranks)
    expected = token_kappa(built.objective, batch.inputs, statistic, batch.weight, denominator=batch.denominator).kappa
    calls = []

    def made_up_pass(*_: Any, **__: Any) -> tuple[Any, Any, Any]:
        calls.append(True)
        return leaf, torch.zeros_like(leaf), leaf.new_zeros(())

    columns = torch.ones(ROWS, TOKENS, dtype=torch.long, device=leaf.device)
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    rows = {**dict.fromkeys(names, columns), "advantages": batch.inputs.credit, "num_items_in_batch": columns.sum(), "tokencredit": batch}
    kept, training = {mode: dict(numbers) for mode, numbers in trainer._metrics.items()}, trainer.model.training
    trainer._get_per_token_logps_and_entropies = made_up_pass
    try:
        trainer.model.eval()
        loss = trainer.compute_loss(trainer.model, rows)
        kappa = torch.autograd.grad(loss, leaf, allow_unused=True)[0] if loss.requires_grad else None
    except Exception as problem:
        raise EngineUnavailableError(f"{_refusal()}: its loss could not be computed ({type(problem).__name__}: {problem})") from problem
    finally:
        del trainer._get_per_token_logps_and_entropies
        trainer.model.train(training)
        for mode, numbers in trainer._metrics.items():
            numbers.clear()
            numbers.update(kept[mode])
    if not calls or kappa is None or not torch.allclose(kappa, expected * trainer.accelerator.num_processes, rtol=1e-4, atol=1e-7):
        raise EngineUnavailableError(f"{_refusal()}: credit that differs between tokens does not reach the gradient of its loss")


def _refusal() -> str:
    return f"trl {require('trl')} does not do what this adapter was tested with (trl {TESTED['trl']})"


def _made_up(device: torch.device, rank: int) -> tuple[torch.Tensor, MicroBatch]:
    leaf = torch.tensor([[-0.5, -1.0, -1.5], [-0.7, -0.2, -2.0]], device=device, requires_grad=True)
    ones = torch.ones_like(leaf, requires_grad=False)
    inputs = TokenInputs(
        logp=leaf.detach(),
        old_logp=leaf.detach(),
        credit=torch.tensor([[1.0, -0.25, -0.75], [-0.5, 1.0, -0.5]], device=device),
        mask=torch.ones_like(leaf, dtype=torch.bool),
        group=torch.full((ROWS,), rank, device=device),
        reference_logp=leaf.detach(),
        advantage=torch.tensor([1.0, -1.0], device=device),
        row=torch.arange(ROWS, device=device) + rank * ROWS,
        correction=ones,
    )
    return leaf, MicroBatch(inputs, ones, float(leaf.numel()))
