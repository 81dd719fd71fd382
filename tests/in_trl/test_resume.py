"""A run that is stopped in the middle of a generation cycle and resumed ends with the weights of one that never stopped, to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from in_trl.small_run import small_trainer, trained
from in_trl.two_ranks import RANKS
from tokencredit.errors import ConfigError
from tokencredit.integrations.trl import checkpoint as saved

CYCLE, LAST = 4, 12
RUNS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "delta, in the middle": ("delta", 6, {}),
    "delta, between batches": ("delta", 8, {}),
    "fade, what it remembers": ("fade", 6, {}),
    "clip-cov, micro-batches": ("clip-cov", 7, {"accumulated": 2}),
    "dapo, in the second pass": ("dapo", 6, {"num_iterations": 2}),
}


def _both(folder: Path, recipe: Any, stop: int, settings: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights without a stop, and resumed from the checkpoint at `stop`."""
    settings = {"max_steps": LAST, "save_strategy": "steps", "save_steps": stop, "optimizer_steps": CYCLE, **settings}
    never_stopped = trained(small_trainer(folder, recipe, **settings))
    resumed = trained(small_trainer(folder, recipe, **settings), resume_from_checkpoint=str(folder / f"checkpoint-{stop}"))
    return never_stopped, resumed


@pytest.mark.parametrize("run", RUNS)
def test_resume_is_exact(run: str, tmp_path: Path) -> None:
    never_stopped, resumed = _both(tmp_path, *RUNS[run])
    assert torch.equal(resumed, never_stopped)


def test_two_ranks_resume_exactly(two_ranks: Path) -> None:
    for rank in range(RANKS):
        found = torch.load(two_ranks / f"resumed.{rank}.pt")
        assert torch.equal(found["resumed"], found["never stopped"])


def test_stock_trl_does_not(tmp_path: Path) -> None:
    """What our own file is for: without it the rest of the batch is generated anew."""
    never_stopped, resumed = _both(tmp_path, None, 6, {})
    assert not torch.equal(resumed, never_stopped)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    small_trainer(folder, "fade", max_steps=2, save_strategy="steps", save_steps=2).train()
    return folder / "checkpoint-2"


def _resume(folder: Path, checkpoint: Path, recipe: Any = "fade", **settings: Any) -> Any:
    trainer = small_trainer(folder, recipe, max_steps=4, **settings)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return trainer


def _read(folder: Path, trainer: Any) -> Any:
    return saved.load(folder, rank=0, ranks=1, recipe=trainer.recipe, args=trainer.args, device=torch.device("cpu"))


def test_state_and_place_come_back(checkpoint: Path, tmp_path: Path) -> None:
    step, state, buffer = _read(checkpoint, small_trainer(tmp_path, "fade"))
    assert step == 2
    assert set(state.advantage) == {"solve_rate", "entropy", "initial_entropy", "alpha", "delta"}
    assert len(buffer) == CYCLE
    assert all(rows["tokencredit"].inputs.row is not None for rows in buffer)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"recipe": "grpo"}, "written with another recipe"),
        ({"recipe": {"recipe": "fade", "advantage": {"alpha_max": 2.0}}}, "written with another recipe"),
        ({"optimizer_steps": 2}, "steps_per_generation is 2, but .* was written with 4"),
        ({"num_iterations": 2}, "num_iterations is 2, but .* was written with 1"),
        ({"group_size": 2}, "generation_batch_size is 8, but .* was written with 16"),
    ],
)
def test_another_run_is_refused(settings: dict[str, Any], words: str, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        _resume(tmp_path, checkpoint, **settings)


def test_a_checkpoint_of_another_number_of_processes_is_refused(two_ranks: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was written by 2 processes, but there are 1; use as many"):
        _resume(tmp_path, two_ranks / "resume" / "checkpoint-6", "delta")


def test_a_checkpoint_of_stock_trl_is_refused(tmp_path: Path) -> None:
    small_trainer(tmp_path / "stock", None, max_steps=2, save_strategy="steps", save_steps=2).train()
    with pytest.raises(ConfigError, match=r"has no tokencredit_0\.pt: .* give its folder as the model instead of resuming"):
        _resume(tmp_path / "ours", tmp_path / "stock" / "checkpoint-2")


def test_a_later_format_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    torch.save({**torch.load(checkpoint / "tokencredit_0.pt", weights_only=True), "format": 2}, tmp_path / "tokencredit_0.pt")
    with pytest.raises(ConfigError, match="has format 2; this version reads format 1"):
        _read(tmp_path, small_trainer(tmp_path, "fade"))


def test_no_half_written_file_is_left(checkpoint: Path) -> None:
    assert not list(checkpoint.glob("*.part"))
