"""The embedded task trained end to end through TRL: its sampling, its optimizer, its loop; DelTA's credit, whole groups."""

from pathlib import Path
from typing import Any

from in_trl.small_run import problems, small_trainer

RECIPE = {"recipe": "delta", "batching": {"type": "query-preserved"}}
PROMPTS, BATCHES, OPTIMIZER_STEPS = 16, 24, 4


def reward_curve(folder: Path, *, ranks: int = 1, **settings: Any) -> list[float]:
    """Mean reward of every batch of generations."""
    trainer = small_trainer(
        folder,
        RECIPE,
        prompts=PROMPTS,
        group_size=8,
        optimizer_steps=OPTIMIZER_STEPS,
        ranks=ranks,
        named={"train_dataset": problems(PROMPTS * BATCHES)},
        **{"max_steps": BATCHES * OPTIMIZER_STEPS, "logging_steps": OPTIMIZER_STEPS, "learning_rate": 3e-4, **settings},
    )
    trainer.train()
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
