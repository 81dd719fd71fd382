"""Log-probs of a sampler that differs from the policy, as vLLM's do: TRL's own correction weighs tokens, or the recipe's does.

vLLM itself would only have produced them, so it is not there.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conformance.cases import Case
from conformance.compare import assert_same
from conformance.outcome import Outcome
from conformance.reference import run_case
from conformance.stored import LIMIT
from in_trl.stored_run import stored_trainer
from tokencredit.config.resolve import read_recipe
from tokencredit.pipeline.credit import CreditPipeline

CAP = 1.5
PLAIN = {"recipe": "dapo"}
CORRECTED = {"recipe": "dapo", "correction": {"kind": "tis", "cap": CAP}}
REFERENCE = Case(CORRECTED, other_sampler=True)


def _run(folder: Path, recipe: dict[str, Any], **settings: Any) -> Outcome:
    """As if TRL had been told to use vLLM, from the first batch on."""
    trainer = stored_trainer(Case(PLAIN), folder, **settings)
    trainer.recipe = read_recipe(recipe)
    trainer.credit_pipeline = CreditPipeline(trainer.recipe, max_new_tokens=LIMIT, temperature=1.0)
    trainer.other_sampler = trainer.use_vllm = True
    trainer.vllm_generation, trainer._last_loaded_step = SimpleNamespace(sync_weights=lambda: None), -1
    trainer.train()
    return trainer.outcome


def test_trl_own_correction(tmp_path: Path) -> None:
    settings = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": CAP}
    assert_same("truncated by TRL", _run(tmp_path, PLAIN, **settings), run_case(REFERENCE).outcome)


def test_the_recipes_correction(tmp_path: Path) -> None:
    settings = {"vllm_importance_sampling_correction": False}
    assert_same("truncated by the recipe", _run(tmp_path, CORRECTED, **settings), run_case(REFERENCE).outcome)


def test_it_matters() -> None:
    corrected, plain = (run_case(Case(recipe, other_sampler=True)).outcome for recipe in (CORRECTED, PLAIN))
    assert (corrected.gradient - plain.gradient).abs().max() > 1e-2
