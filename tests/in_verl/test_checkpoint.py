"""What methods remember is saved beside verl's checkpoint and found again; verl's own saving runs, its workers are made up."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from conformance.cases import Case
from conformance.stored import stored_batches
from in_verl.stored_run import StoredTrainer, Workers, case_overrides, credit_stored, hydra_config, in_place_of_the_queue, shape_of
from tokencredit.errors import ConfigError
from tokencredit.integrations.verl.trainer import STATE
from tokencredit.pipeline.credit import MethodState

FADE = Case({"recipe": "fade"})


def made_up_parts(trainer: StoredTrainer) -> SimpleNamespace:
    """What verl's saving and loading asks of others."""
    trainer.actor_rollout_wg, trainer.train_dataloader, trainer.checkpoint_callback = Mock(), Mock(), Mock()
    trainer.train_dataloader.state_dict = lambda: {"seen": 1}
    trainer.trainer_mode = "sync"
    return SimpleNamespace(workers=trainer.actor_rollout_wg, dataloader=trainer.train_dataloader)


def make_trainer(workers: Workers, scene: Path, checkpoints: Path, *words: str, case: Case = FADE) -> StoredTrainer:
    saving = [f"trainer.default_local_dir={checkpoints}", "trainer.resume_mode=auto"]
    return StoredTrainer(hydra_config(scene, shape_of(case, 1), *case_overrides(case), *saving, *words), workers)


def push(trainer: StoredTrainer, workers: Workers, number: int) -> None:
    with in_place_of_the_queue(workers.queue):
        credit_stored(trainer, workers.queue, stored_batches()[number], {})


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(workers: Workers, tmp_path: Path) -> None:
    workers.start(FADE.learning_rate)
    trainer = make_trainer(workers, tmp_path / "first", tmp_path / "saved")
    push(trainer, workers, 0)
    remembered = trainer.stage_state
    assert remembered.advantage, "FADE remembers something"

    folder = tmp_path / "saved" / "global_step_1"
    parts = made_up_parts(trainer)
    parts.workers.save_checkpoint.side_effect = lambda *_, **__: (folder / STATE).read_bytes()
    trainer._save_checkpoint()
    parts.workers.save_checkpoint.assert_called_once()
    assert sorted(path.name for path in folder.iterdir()) == ["data.pt", STATE]
    assert (tmp_path / "saved" / "latest_checkpointed_iteration.txt").read_text() == "1"

    again = make_trainer(workers, tmp_path / "second", tmp_path / "saved")
    parts = made_up_parts(again)
    again._load_checkpoint()
    parts.workers.load_checkpoint.assert_called_once()
    assert again.stage_state == remembered
    assert again.global_steps == 1

    fresh = make_trainer(workers, tmp_path / "third", tmp_path / "empty")
    for other in (trainer, again, fresh):
        other.actor_rollout_wg, other.global_steps = workers, 2
        push(other, workers, 1)
    assert again.made[-1].advantage.tolist() == trainer.made[-1].advantage.tolist()
    assert fresh.made[-1].advantage.tolist() != trainer.made[-1].advantage.tolist(), "what it remembers matters"
    assert again.stage_state == trainer.stage_state


def saved(workers: Workers, folder: Path, state: MethodState, *, step: int = 3) -> None:
    trainer = make_trainer(workers, folder / "writer", folder / "saved")
    made_up_parts(trainer)
    trainer.stage_state, trainer.global_steps = state, step
    trainer._save_checkpoint()


def loaded(workers: Workers, folder: Path, *words: str, **chosen: Any) -> StoredTrainer:
    trainer = make_trainer(workers, folder / "reader", folder / "saved", *words, **chosen)
    made_up_parts(trainer)
    trainer._load_checkpoint()
    return trainer


def test_states_of_both_stages_travel(workers: Workers, tmp_path: Path) -> None:
    state = MethodState({"entropy": 0.25}, {"temperature": [1.0, 2.0, 3.0]})
    saved(workers, tmp_path, state)
    found = loaded(workers, tmp_path)
    assert (found.stage_state, found.global_steps) == (state, 3)


def test_a_named_checkpoint_is_read_instead_of_the_latest(workers: Workers, tmp_path: Path) -> None:
    for step in (3, 4):
        saved(workers, tmp_path / str(step), MethodState({"entropy": float(step)}), step=step)
    words = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/3/saved/global_step_3"]
    found = loaded(workers, tmp_path / "4", *words)
    assert (found.stage_state.advantage, found.global_steps) == ({"entropy": 3.0}, 3)


def test_without_a_checkpoint_nothing_is_remembered(workers: Workers, tmp_path: Path) -> None:
    found = loaded(workers, tmp_path)
    assert (found.stage_state, found.global_steps) == (MethodState(), 0)


@pytest.mark.parametrize("other", [{"recipe": "dapo"}, {"recipe": "fade", "objective": {"clip_high": 0.31}}])
def test_a_checkpoint_of_another_recipe_is_refused(other: dict[str, Any], workers: Workers, tmp_path: Path) -> None:
    saved(workers, tmp_path, MethodState())
    with pytest.raises(ConfigError, match="global_step_3 was written with another recipe; resume with the same one"):
        loaded(workers, tmp_path, case=Case(other))


def test_a_checkpoint_without_a_recipe_is_refused(workers: Workers, tmp_path: Path) -> None:
    saved(workers, tmp_path, MethodState())
    (tmp_path / "saved" / "global_step_3" / STATE).unlink()
    with pytest.raises(ConfigError, match=f"global_step_3 has no {STATE}; it was written without a recipe"):
        loaded(workers, tmp_path)


def test_the_file_says_which_recipe_it_belongs_to(workers: Workers, tmp_path: Path) -> None:
    saved(workers, tmp_path, MethodState({"entropy": 0.5}))
    content = json.loads((tmp_path / "saved" / "global_step_3" / STATE).read_text())
    assert content["recipe"]["advantage"]["type"] == "fade"
    assert content["state"] == {"advantage": {"entropy": 0.5}, "credit": {}}
