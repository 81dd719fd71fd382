"""Whole runs: the same seed gives the same bits, a resumed run equals one that never stopped, recipes differ where they say."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.runs import files_of, newest, run, same_weights, small_config, weights
from tokencredit.config.recipes import RECIPES
from tokencredit.models import model_folder
from tokencredit.storage.run_dir import TOKEN_COLUMNS


def test_same_seed_same_bits_other_seed_other_bits(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run(small_config(seed=seed), tmp_path / name)
    one, again, other = (files_of(tmp_path / name) for name in "abc")
    assert one == again
    assert one["metrics.jsonl"] != other["metrics.jsonl"]
    assert not same_weights(tmp_path / "a", tmp_path / "c")
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in "ab"]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(tmp_path: Path, stop_after: int) -> None:
    config = small_config(credit={"temperature": "first-batch"})
    run(config, tmp_path / "whole")
    assert run(config, tmp_path / "cut", stop_after=stop_after).interrupted
    assert not (tmp_path / "cut" / "result.json").exists()
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_a_resume_that_forgot_the_optimizer_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config()
    run(config, tmp_path / "whole")
    run(config, tmp_path / "cut", stop_after=2)
    monkeypatch.setattr("tokencredit.trainer.run.load_optimizer", lambda optimizer, folder: None)
    run(config, tmp_path / "cut", resume=True)
    assert not same_weights(tmp_path / "whole", tmp_path / "cut")


def test_resume_rewrites_steps_the_checkpoint_had_not_seen(tmp_path: Path) -> None:
    """A crash after step 3 with a checkpoint at 2 leaves rows of step 3 behind; they must not appear twice."""
    config = small_config(save_every=2)
    run(config, tmp_path / "whole")
    run(config, tmp_path / "cut", stop_after=2)
    folder = tmp_path / "cut"
    for name in ("metrics.jsonl", "plans.jsonl", "timing.jsonl"):
        with (folder / name).open("a") as file:
            file.write(json.dumps({"step": 3, "left": "behind"}) + "\n")
    (folder / "tokens" / "step-000003.parquet").write_bytes(b"left behind")
    run(config, folder, resume=True)
    assert files_of(tmp_path / "whole") == files_of(folder)


def test_delta_with_an_empty_range_is_dapo_bit_for_bit(tmp_path: Path) -> None:
    run(small_config(recipe="dapo"), tmp_path / "dapo")
    run(small_config(recipe="delta", credit={"lam_min": 0.9, "lam_max": 0.9}), tmp_path / "same")
    run(small_config(recipe="delta"), tmp_path / "delta")
    assert same_weights(tmp_path / "dapo", tmp_path / "same")
    assert not same_weights(tmp_path / "dapo", tmp_path / "delta")


def test_scoring_in_a_pass_and_from_the_sampler_agree(tmp_path: Path) -> None:
    for scoring in ("sampler", "pass"):
        run(small_config(scoring=scoring, steps=1, dtype="float64"), tmp_path / scoring)
    first, second = weights(tmp_path / "sampler"), weights(tmp_path / "pass")
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], atol=1e-9, rtol=0)


def test_dapo_and_delta_differ_in_credit_alone() -> None:
    dapo, delta = (RECIPES[name].recipe.model_dump() for name in ("dapo", "delta"))
    assert {key for key in dapo if dapo[key] != delta[key]} == {"credit"}
    unshuffled = {name for name, entry in RECIPES.items() if entry.recipe.batching.type != "shuffled"}
    assert unshuffled == {"cancellation", "grpo-fix", "dfpo", "dfpo-orthogonal"}


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_moves_the_weights_and_records_finite_numbers(tmp_path: Path, recipe: str) -> None:
    outcome = run(small_config(recipe=recipe, steps=2), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert all(value == value and abs(value) < 1e6 for value in row.values())
        assert row["grad_norm"] > 0
    assert outcome.result["rollouts_used"] >= 48
    base = AutoModelForCausalLM.from_pretrained(outcome.policy.model.config._name_or_path).state_dict()
    assert any(not torch.equal(base[name], value) for name, value in weights(tmp_path / "run").items())


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_a_kl_term_keeps_the_policy_near_its_reference(tmp_path: Path, place: str) -> None:
    """A strong pull leaves less divergence behind than a negligible one; with the wrong sign it would leave more."""
    final: dict[float, float] = {}
    for beta in (1e-9, 3.0):
        kl = {"beta": beta, "place": place, "estimator": "k3" if place == "loss" else "k1"}
        run(small_config(recipe="grpo", steps=8, kl=kl, save_every=0, tokens_every=0, evaluation={"every": 0}), tmp_path / str(beta))
        final[beta] = json.loads((tmp_path / str(beta) / "metrics.jsonl").read_text().splitlines()[-1])["kl"]
    assert final[3.0] < 0.7 * final[1e-9]


def test_token_files_hold_every_sampled_token_with_its_credit(tmp_path: Path) -> None:
    from pyarrow import parquet

    run(small_config(steps=1), tmp_path / "run")
    table = parquet.read_table(tmp_path / "run" / "tokens" / "step-000001.parquet").to_pydict()
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert tuple(table) == TOKEN_COLUMNS
    assert len(table["text"]) == metrics["tokens"]
    for advantage, coefficient, credit in zip(table["advantage"], table["coefficient"], table["credit"], strict=True):
        assert credit == pytest.approx(advantage * coefficient, abs=1e-6)
    assert set(table["token_class"]) >= {"preamble", "copy", "operator", "operand", "result", "separator", "answer", "end"}
    assert set(table["optimizer_step"]) == {0, 1}


def test_checkpoints_are_ordinary_transformers_folders(tmp_path: Path) -> None:
    outcome = run(small_config(), tmp_path / "run")
    for folder in (newest(tmp_path / "run"), model_folder(str(tmp_path / "run"))):
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        prompt = tokenizer("1+2+3+4-5=", return_tensors="pt").input_ids
        text = tokenizer.decode(model.generate(prompt, max_new_tokens=40, do_sample=False)[0], skip_special_tokens=True)
        assert text.startswith("1+2+3+4-5=")
        assert "#" in text
    last = weights(tmp_path / "run")
    for key, value in outcome.policy.model.state_dict().items():
        assert torch.equal(value, last[key])


def test_the_default_learns(tmp_path: Path) -> None:
    """Twelve steps of the real default: held-out accuracy rises by far more than its sampling error."""
    config = small_config(
        steps=12,
        sampling={"prompts": 32, "group_size": 8},
        optimizer={"steps_per_batch": 4},
        evaluation={"every": 0, "final_problems": 256, "final_samples": 4},
        save_every=0,
        tokens_every=0,
    )
    result = run(config, tmp_path / "run").result
    assert result["before"]["sampled"] < 0.4
    assert result["after"]["sampled"] > result["before"]["sampled"] + 0.12
