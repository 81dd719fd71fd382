"""Log-probs, entropies and hidden states come from the pass that TRL makes anyway; where it makes none, one is made if it is needed."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from conformance.cases import CASES
from conformance.reference import batches_of
from in_trl.small_run import small_trainer
from in_trl.stored_run import stored_trainer
from tokencredit.integrations.trl.trainer import CreditGRPOTrainer

SLICES = 4


class ForwardMode(NamedTuple):
    """Through the model in one batch of generations, writing aside."""

    scoring: int
    """Without gradient; a pass over the whole batch counts once for each slice of it."""
    training: int


def _passes(folder: Path, recipe: Any, **settings: Any) -> ForwardMode:
    trainer = small_trainer(folder, recipe, **settings)
    seen: list[bool] = []

    def note(_: Any, given: Any, named: dict[str, Any]) -> None:
        if named.get("fused_lm_head"):
            seen.append(torch.is_grad_enabled())

    trainer.model.register_forward_pre_hook(note, with_kwargs=True)
    trainer.train()
    return ForwardMode(seen.count(False), seen.count(True))


OFF_POLICY = {"optimizer_steps": SLICES}
ON_POLICY = {"optimizer_steps": 1, "accumulated": SLICES}
EXPECTED: dict[str, tuple[Any, dict[str, int], ForwardMode]] = {
    "stock, off policy": (None, OFF_POLICY, ForwardMode(SLICES, SLICES)),
    "dapo, off policy": ("dapo", OFF_POLICY, ForwardMode(SLICES, SLICES)),
    "delta, off policy": ("delta", OFF_POLICY, ForwardMode(SLICES, SLICES)),
    "fade, off policy": ("fade", OFF_POLICY, ForwardMode(SLICES, SLICES)),
    "stock, on policy": (None, ON_POLICY, ForwardMode(0, SLICES)),
    "dapo, on policy": ("dapo", ON_POLICY, ForwardMode(0, SLICES)),
    "delta, on policy": ("delta", ON_POLICY, ForwardMode(SLICES, SLICES)),
    "fade, on policy": ("fade", ON_POLICY, ForwardMode(SLICES, SLICES)),
    "ntf, on policy": ("ntf", ON_POLICY, ForwardMode(SLICES, SLICES)),
    "forking tokens, on policy": ("forking-tokens", ON_POLICY, ForwardMode(SLICES, SLICES)),
    "ktae, on policy": ("ktae", ON_POLICY, ForwardMode(0, SLICES)),
    # Statistics over four micro-batches: the first is used at once, the other three are looked at before.
    "clip-cov, on policy": ("clip-cov", ON_POLICY, ForwardMode(SLICES - 1, SLICES)),
}


@pytest.mark.parametrize("what", EXPECTED)
def test_passes_through_the_model(what: str, tmp_path: Path) -> None:
    recipe, settings, expected = EXPECTED[what]
    assert _passes(tmp_path, recipe, **settings) == expected


def test_hidden_states_are_those_of_the_scored_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state at the position before a token, through the head, must give back the token's log-prob."""
    kept: list[Any] = []
    scored = CreditGRPOTrainer._scored
    monkeypatch.setattr(CreditGRPOTrainer, "_scored", lambda self, rows: kept.append(scored(self, rows)) or kept[-1])
    case = CASES["delta"]
    trainer = stored_trainer(case, tmp_path, max_steps=1)
    head = trainer.model.get_output_embeddings().weight.detach().clone()
    trainer.train()
    rollouts = batches_of(case)[0].rollouts()
    logp = (kept[0].hidden @ head.T).log_softmax(-1).gather(-1, rollouts.tokens[..., None])[..., 0]
    assert (logp - kept[0].logp)[rollouts.mask].abs().max() < 1e-5
