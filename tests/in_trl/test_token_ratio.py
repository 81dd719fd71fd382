"""GSPO has one ratio per response. Stock TRL lets that average token credit away; the token form does not."""

from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.cases import CASES
from in_trl.small_run import small_trainer
from in_trl.stored_run import stored_trainer


def _gradient_norm(trainer: Any, loss: torch.Tensor) -> float:
    trainer.model.zero_grad()
    loss.backward()
    return float(torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()]).norm())


@pytest.fixture
def zero_sum(tmp_path: Path) -> tuple[Any, dict[str, Any], torch.Tensor]:
    """A trainer in the middle of a batch, a micro-batch of it, and credit that sums to 0 in every response."""
    trainer = stored_trainer(CASES["gspo"], tmp_path, max_steps=1)
    trainer.train()
    rows = trainer._buffered_inputs[1]
    mask = rows["tokencredit"].inputs.mask
    credit = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0)).where(mask, 0.0)
    credit = (credit - credit.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).where(mask, 0.0)
    assert credit.sum(-1).abs().max() < 1e-5
    return trainer, rows, credit


def test_ours_keeps_token_credit(zero_sum: tuple[Any, dict[str, Any], torch.Tensor]) -> None:
    trainer, rows, credit = zero_sum
    batch = rows["tokencredit"]
    batch = batch._replace(inputs=batch.inputs._replace(credit=credit, old_logp=_logp(trainer, rows)))
    assert _gradient_norm(trainer, trainer._compute_loss(trainer.model, {**rows, "tokencredit": batch})) > 0.1


def test_stock_averages_it_away(zero_sum: tuple[Any, dict[str, Any], torch.Tensor], tmp_path: Path) -> None:
    _, rows, credit = zero_sum
    for level, expected in (("sequence", False), ("token", True)):
        trainer = small_trainer(tmp_path, None, importance_sampling_level=level, loss_type="grpo")
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        kept = {key: rows[key] for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")}
        stock = {**kept, "advantages": credit, "old_per_token_logps": _logp(trainer, rows), "num_items_in_batch": torch.tensor(1.0)}
        assert (_gradient_norm(trainer, trainer._compute_loss(trainer.model, stock)) > 1e-3) == expected


def _logp(trainer: Any, rows: dict[str, Any]) -> torch.Tensor:
    ids, mask = (torch.cat([rows[f"prompt_{name}"], rows[f"completion_{name}"]], 1) for name in ("ids", "mask"))
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, rows["completion_ids"].shape[1])[0]
