"""What the run tells is what was trained on: the table of completions, the metrics, the number of responses that were not graded."""

from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

from conformance.cases import CASES
from conformance.reference import batches_of
from in_trl.small_run import small_trainer
from in_trl.stored_run import StoredTrainer, prompts_of, stored_trainer

EVERY_RECIPE = {
    "tokencredit/ungraded",
    "tokencredit/unscored_tokens",
    "tokencredit/optimizer_steps",
    "tokencredit/prompts_per_optimizer_step",
    "tokencredit/steps_splitting_groups",
    "tokencredit/tokens",
}
EVERY_STEP = {"entropy", "tokencredit/ratio_mean", "tokencredit/silenced_share"}


def _run(folder: Path, name: str, **settings: Any) -> StoredTrainer:
    trainer = stored_trainer(CASES[name], folder, **settings)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> StoredTrainer:
    return _run(tmp_path_factory.mktemp("delta"), "delta", log_completions=True, num_completions_to_print=0)


def test_the_table_of_completions_holds_the_trained_numbers(delta: StoredTrainer) -> None:
    """TRL writes its own advantages before anybody can change them; here they are ours, with the credit of every token."""
    for number, (made, batch) in enumerate(zip(delta.made, batches_of(CASES["delta"]), strict=True)):
        table = pandas.read_parquet(Path(delta.args.output_dir) / "completions" / f"completions_{4 * number + 1:05d}.parquet")
        assert table["prompt"].tolist() == list(batch.prompts)
        assert table["advantage"].tolist() == made.advantage.tolist()
        for row, credit in enumerate(table["token_credit"]):
            written = torch.tensor(batch.written[row])
            assert torch.allclose(torch.tensor(credit).float(), made.credit[row, : len(written)][written], atol=1e-5)
            assert len(credit) == len(batch.response_ids[row])
        assert any(len(set(credit)) > 5 for credit in table["token_credit"]), "credit differs between tokens"


def test_rows_of_an_evaluation_come_after_those_of_training(tmp_path: Path) -> None:
    """The table holds the last rows of either; prompts, advantages and credit must stay side by side."""
    case = CASES["delta"]
    asked = {"eval_dataset": prompts_of(batches_of(case)[:1]).select([4, 5])}
    trainer = stored_trainer(case, tmp_path, named=asked, max_steps=1, log_completions=True, per_device_eval_batch_size=8)
    trainer.train()
    trainer.evaluate()
    advantage = trainer.made[0].advantage.tolist()
    in_eval = sorted(range(16, 24), key=lambda row: trainer._logs["prompt"][24] != batches_of(case)[0].prompts[row])
    assert list(trainer._logs["prompt"]) == [batches_of(case)[0].prompts[row] for row in [*range(8, 32), *in_eval]]
    assert list(trainer._logs["advantages"])[:24] == advantage[8:]
    assert len(trainer._logs["extra"]["token_credit"]) == 32
    for shown, credit in zip(trainer._logs["advantages"], trainer._logs["extra"]["token_credit"], strict=True):
        assert (shown == 0) == (not any(credit)), "credit of another row"


def test_metrics_of_a_batch_and_of_a_step(delta: StoredTrainer) -> None:
    history = [entry for entry in delta.state.log_history if "loss" in entry]
    assert [number for number, entry in enumerate(history) if entry.keys() >= EVERY_RECIPE] == [0, 4]
    assert all(entry.keys() >= EVERY_STEP for entry in history)
    assert history[0].keys() >= {"tokencredit/coefficient_mean", "tokencredit/coefficient_std"}
    assert history[0]["tokencredit/ungraded"] == 5
    assert history[0]["tokencredit/optimizer_steps"] == 4
    assert history[0]["tokencredit/coefficient_mean"] == pytest.approx(1, abs=1e-6)
    assert history[0]["tokencredit/ratio_mean"] == pytest.approx(1, abs=1e-6)
    assert max(entry["tokencredit/silenced_share"] for entry in history) > 0


def test_what_a_method_remembers_is_seen(tmp_path: Path) -> None:
    history = _run(tmp_path, "fade").state.log_history
    assert history[0].keys() >= {f"tokencredit/advantage/{name}" for name in ("alpha", "delta", "entropy", "solve_rate")}


def test_kl_is_told(tmp_path: Path) -> None:
    history = _run(tmp_path, "grpo, KL in the loss").state.log_history
    assert history[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert history[3]["kl"] != 0


def test_whole_groups_are_told(tmp_path: Path) -> None:
    assert _run(tmp_path, "delta, whole groups").state.log_history[0]["tokencredit/steps_splitting_groups"] == 0
    assert _run(tmp_path, "grpo").state.log_history[0]["tokencredit/steps_splitting_groups"] == 1


def test_several_reward_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighted as TRL weighs them; one that declines leaves the others, and a response that all decline is not graded."""
    seen: list[Any] = []

    def often(completions: list[str], **_: Any) -> list[float | None]:
        return [None if row in (1, 2) else float(row % 2) for row in range(len(completions))]

    def sometimes(completions: list[str], **_: Any) -> list[float | None]:
        return [None if row in (2, 3) else 2.0 for row in range(len(completions))]

    trainer = small_trainer(tmp_path, "grpo", reward=[often, sometimes], max_steps=1, reward_weights=[1.0, 0.5])
    monkeypatch.setattr(type(trainer), "_log_batch", lambda self, batch, *_: seen.append(batch))
    trainer.train()
    score = seen[0].credited.scored.score
    assert score[:5].nan_to_num(-1).tolist() == [1.0, 1.0, -1.0, 1.0, 1.0]
    assert trainer.state.log_history[0]["reward"] == pytest.approx(float(score.nanmean()))
    assert seen[0].credited.credit[2].abs().sum() == 0
