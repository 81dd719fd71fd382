"""Credit of stored rollouts: what a run credited itself, and the same with and without a model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet

from engine.runs import run, small_config
from fault.command import tokencredit
from surface.methods import refused_by, sampling
from tokencredit.analysis.offline import check_offline, credit_stored, credit_without_model, offline_config, offline_notes, why_a_model
from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import resolve
from tokencredit.errors import ConfigError
from tokencredit.pipeline.credit import MethodState
from tokencredit.policy.policy import Policy, load_policy
from tokencredit.rollout.scoring import plan_steps
from tokencredit.rollout_io.load import load
from tokencredit.rollout_io.read import StoredRollouts, read_rollouts
from tokencredit.rollout_io.write import rollout_rows, write_rows
from tokencredit.storage.run_dir import TOKEN_COLUMNS
from tokencredit.trainer.loop import step_once
from tokencredit.trainer.step import PolicyTrainer
from tokencredit.types import Credited

SAMPLED = frozenset(sampling())
SAMPLE_NOTHING = sorted(name for name in RECIPES if name not in SAMPLED)


def first_step(**changes: Any) -> Credited:
    """What the first training step of a tiny run credits."""
    config = small_config(dtype="float64", **changes)
    trained = step_once(PolicyTrainer(config, source=config.model), 0, MethodState())
    assert trained.trained
    return trained.credited


def stored_as(path: Path, credited: Credited) -> Path:
    write_rows(path, rollout_rows(credited.rollouts, credited.scored.score, advantage=credited.advantage, step=1))
    return path


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("steps-shift", device=torch.device("cpu"), dtype="float64")


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> StoredRollouts:
    folder = tmp_path_factory.mktemp("run")
    return read_rollouts(stored_as(folder / "rollouts.parquet", first_step()))


@pytest.mark.parametrize("recipe", ["delta", "grpo", "forking-tokens", "ktae", "ntf-whitened", "fade", "random-lambda", "dr-grpo"])
def test_the_credit_of_a_run_is_found_again(tmp_path: Path, policy: Policy, recipe: str) -> None:
    own = first_step(recipe=recipe)
    stored = read_rollouts(stored_as(tmp_path / "rollouts.parquet", own), policy)
    config = offline_config(stored, [{"recipe": recipe, "dtype": "float64", "sampling": {"max_new_tokens": 48}}])
    assert offline_notes(config) == ()
    found = credit_stored(policy, stored, config).credited
    for name in ("credit", "advantage", "old_logp", "entropy"):
        torch.testing.assert_close(getattr(found, name), getattr(own, name), rtol=0, atol=1e-6)
    assert torch.equal(found.scored.reward, own.scored.reward)
    assert float(own.credit.abs().max()) > 0.1


def test_an_overlong_penalty_needs_a_known_limit(policy: Policy, some: StoredRollouts) -> None:
    """Of a limit that is told, of one that a cut response tells, and of one nobody knows."""
    longest = int(some.rollouts.mask.sum(-1).max())

    def penalty(stored: StoredRollouts, *layers: dict[str, Any]) -> float:
        scored = credit_stored(policy, stored, offline_config(stored, [{"recipe": "dapo", "dtype": "float64"}, *layers])).credited.scored
        return float((scored.score - scored.reward).max())

    finished = some._replace(rollouts=replace(some.rollouts, finished=torch.ones(24, dtype=torch.bool)))
    cut = some._replace(rollouts=replace(some.rollouts, finished=torch.arange(24) > 0))
    assert penalty(cut) == pytest.approx(1)
    assert penalty(finished) == 0
    assert penalty(finished, {"sampling": {"max_new_tokens": longest}}) == pytest.approx(1)
    assert penalty(finished, {"sampling": {"max_new_tokens": 2 * longest}}) == 0
    assert offline_notes(offline_config(cut, [{"recipe": "dapo"}])) == ()
    assert "the overlong penalty of recipe 'dapo' is left out" in offline_notes(offline_config(finished, [{"recipe": "dapo"}]))[0]
    assert offline_notes(offline_config(finished, [{"recipe": "grpo"}])) == ()
    with pytest.raises(ConfigError, match=r"no response in the file was cut; set sampling\.max_new_tokens"):
        penalty(finished, {"shape": {"type": "overlong"}})


@pytest.mark.parametrize("passes", ["padded", "packed"])
def test_without_sampler_log_probs_the_model_s_stand_in(tmp_path: Path, policy: Policy, passes: str) -> None:
    own = first_step()
    rows = rollout_rows(own.rollouts, own.scored.score)
    write_rows(tmp_path / "r.jsonl", [{name: value for name, value in row.items() if name != "logp"} for row in rows])
    stored = read_rollouts(tmp_path / "r.jsonl", policy)
    config = offline_config(stored, [{"recipe": "delta", "dtype": "float64", "passes": passes, "sampling": {"max_new_tokens": 48}}])
    batch = credit_stored(policy, stored, config)
    torch.testing.assert_close(batch.credited.credit, own.credit, rtol=0, atol=1e-6)
    assert torch.equal(batch.credited.rollouts.behavior_logp, batch.evidence.logp)
    assert batch.credited.rollouts.loss_mask.sum() == own.rollouts.mask.sum()
    plan = plan_steps(batch.pipeline, config, batch.credited, seed=1)
    assert sorted(row for step in plan.steps for row in step.rows) == list(range(24))


@pytest.mark.parametrize("recipe", SAMPLE_NOTHING)
def test_a_recipe_needs_a_model_exactly_when_it_reads_one(policy: Policy, some: StoredRollouts, recipe: str) -> None:
    """Where none is needed, credit without a model is credit with one; where one is, the reason is given."""
    config = offline_config(some, [{"recipe": recipe, "dtype": "float64"}])
    if why_a_model(config) is not None:
        with pytest.raises(ConfigError, match="; give --model DIR"):
            credit_without_model(some, config)
        return
    alone, full = credit_without_model(some, config), credit_stored(policy, some, config).credited
    torch.testing.assert_close(alone.credit, full.credit, rtol=0, atol=1e-6)
    assert (alone.coefficient is None) == (full.coefficient is None)


def test_which_recipes_need_a_model(some: StoredRollouts) -> None:
    needing = {name for name in SAMPLE_NOTHING if why_a_model(offline_config(some, [{"recipe": name}])) is not None}
    assert needing == refused_by("without a model").keys() - SAMPLED
    assert {"delta", "forking-tokens", "ktae", "fade"} <= needing
    assert not {"grpo", "ntf", "sibling-context"} & needing


@pytest.mark.parametrize("recipe", sorted(SAMPLED))
def test_recipes_that_must_sample_are_refused(some: StoredRollouts, recipe: str) -> None:
    with pytest.raises(ConfigError, match=f"recipe '{recipe}' .* cannot credit rollouts from a file"):
        check_offline(offline_config(some, [{"recipe": recipe}]), some)


def test_the_configuration_fits_the_data(some: StoredRollouts) -> None:
    longest = int(some.rollouts.mask.sum(-1).max())
    config = offline_config(some, [{"sampling": {"prompts": 99, "group_size": 99, "temperature": 0.7}}])
    assert config.sampling.model_dump() == {"prompts": 6, "group_size": 4, "max_new_tokens": longest, "temperature": 0.7, "stop": ()}
    assert (config.optimizer.steps_per_batch, config.optimizer.max_tokens) == (4, 8192)
    first = some._replace(rollouts=some.rollouts.select(torch.arange(4)))
    kinds = {"shuffled": 4, "query-preserved": 1, "stratified": 4}
    for kind, steps in kinds.items():
        assert offline_config(first, [{"batching": {"type": kind}}]).optimizer.steps_per_batch == steps
    with pytest.raises(ConfigError, match=r"optimizer\.steps_per_batch is 5 but a batch holds only 4 responses"):
        offline_config(first, [{"optimizer": {"steps_per_batch": 5}}])
    with pytest.raises(ConfigError, match=f"sampling.max_new_tokens is 3 but a response in the file has {longest} tokens"):
        offline_config(some, [{"sampling": {"max_new_tokens": 3}}])


def test_a_correction_needs_the_sampler_s_log_probs(policy: Policy, some: StoredRollouts) -> None:
    config = resolve([{"recipe": "grpo", "correction": {"kind": "tis"}}])
    with pytest.raises(ConfigError, match=r"correction\.kind is 'tis' but the file has no logp"):
        check_offline(config, some._replace(logp_known=False))
    with pytest.raises(ConfigError, match="correction compares the model's log-probs with the sampler's; give --model DIR"):
        credit_without_model(some, config)
    fitted = offline_config(some, [{"recipe": "grpo", "correction": {"kind": "tis"}, "dtype": "float64"}])
    weight = credit_stored(policy, some, fitted).credited.correction
    assert weight is not None
    torch.testing.assert_close(weight[some.rollouts.mask], torch.ones_like(weight[some.rollouts.mask]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_the_command_writes_the_credit_that_the_run_wrote(tmp_path: Path, suffix: str) -> None:
    run(small_config(dtype="float64", steps=1), tmp_path / "run")
    stored_as(tmp_path / "rollouts.parquet", first_step())
    done = tokencredit("credit", "rollouts.parquet", "run/config.toml", "--step", "1", "--out", f"credit{suffix}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    theirs = parquet.read_table(tmp_path / "run" / "tokens" / "step-000001.parquet").to_pylist()
    ours = load(tmp_path / f"credit{suffix}").rows
    assert list(ours[0]) == [*TOKEN_COLUMNS, "given_advantage"]
    assert len(ours) == len(theirs)
    for here, there in zip(ours, theirs, strict=True):
        assert [here[name] for name in ("step", "row", "group", "position", "prompt", "text", "token_id", "reward")] == [
            there[name] for name in ("step", "row", "group", "position", "prompt", "text", "token_id", "reward")
        ]
        for name in ("logp", "behavior_logp", "entropy", "advantage", "coefficient", "credit"):
            assert here[name] == pytest.approx(there[name], abs=1e-6)
        assert here["given_advantage"] == pytest.approx(here["advantage"], abs=1e-6)
        assert (here["token_class"], here["optimizer_step"]) == (None, None)
    assert f"{len(ours):,} tokens of 24 responses in 6 groups" in done.stdout
    for side, chosen in (
        ("positive", [row for row in theirs if row["advantage"] > 0]),
        ("negative", [row for row in theirs if row["advantage"] < 0]),
    ):
        mean = sum(abs(row["credit"]) for row in chosen) / len(chosen)
        assert f"{side} advantage: {len(chosen):,} tokens, mean |credit| {mean:.4g}" in done.stdout


def test_the_command_without_a_model_tells_classes_apart(tmp_path: Path) -> None:
    row = {"prompt_ids": [3], "response_ids": [5, 6], "logp": [-0.1, -3.0], "token_class": ["sure", "open"]}
    write_rows(tmp_path / "r.jsonl", [{**row, "score": 1.0, "advantage": 2.0}, {**row, "score": 0.0, "advantage": -1.0}])
    (tmp_path / "half.toml").write_text('recipe = "dr-grpo"\n[credit]\ntype = "ntf"\nkeep = 0.5\n')
    done = tokencredit("credit", "r.jsonl", "half.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "coefficient of sure: 0 to 1, mean 0.5" in done.stdout
    assert "coefficient of open: 1 to 1, mean 1" in done.stdout
    assert "positive advantage: 2 tokens, mean |credit| 0.5" in done.stdout
    assert "negative advantage: 2 tokens, mean |credit| 0.25" in done.stdout
    assert "advantages computed here and in the file differ by 1 on average, by 1.5 at most" in done.stdout
    assert "to save one row per token: --out FILE" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.toml", "r.jsonl"]
