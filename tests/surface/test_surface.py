"""What people rely on: names, signatures, flags, run-folder files. A change here is a deliberate edit."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tokencredit as package
from engine.runs import run, small_config
from fault.command import SMALL, tokencredit
from surface.methods import stored
from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import resolve, to_toml, validated

SIGNATURES = {
    "group_advantage": ["reward", "group", "kind", "preset", "length"],
    "audit_recipe": ["recipe", "conditions", "seed"],
    "delta_coefficients": [
        "logp", "hidden", "advantage", "mask", "group", "lam_min", "lam_max", "refinements", "scope", "shards", "proxy", "tokens", "head",
        "top_k", "sampling_temperature", "score", "assignment", "coefficient_map", "normalize", "gamma_scale", "fixed_temperature",
        "seed", "reduce",
    ],
    "make_plan": [
        "lengths", "group", "kind", "optimizer_steps", "max_tokens", "seed", "aggregation", "constant_length", "cost", "advantage",
        "method", "keep_queries", "mass", "packed",
    ],
    "clipped_surrogate": ["logp", "old_logp", "credit", "clip_low", "clip_high", "dual_clip"],
    "train": ["config", "path", "callback", "stop", "resume"],
    "resolve": ["layers"],
}  # fmt: skip

METRICS = {
    "step", "rollouts_used", "learning_rate", "score", "reward", "reward_std", "frac_reward_zero_std", "entropy",
    "completions/mean_length", "completions/min_length", "completions/max_length", "completions/clipped_ratio", "ungraded",
    "unscored_tokens", "sampling/sampling_logp_difference/mean", "loss", "grad_norm", "silenced_share", "ratio_mean", "optimizer_steps",
    "prompts_per_optimizer_step", "steps_splitting_groups", "tokens", "coefficient_mean", "coefficient_std",
    "reward/correct", "reward/format", "reward/length",
}  # fmt: skip


def test_public_names() -> None:
    assert set(package.__all__) == {
        "RECIPES", "Credited", "PlannedStep", "Rollouts", "Scored", "StepPlan", "StepResult", "audit_recipe", "clipped_surrogate",
        "delta_coefficients", "group_advantage", "make_plan", "resolve", "train",
    }  # fmt: skip
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = package.nonsense


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    assert list(inspect.signature(getattr(package, name)).parameters) == SIGNATURES[name]


def test_recipe_names() -> None:
    assert list(RECIPES) == list(stored()["recipes"])


def test_authors_numbers() -> None:
    delta = RECIPES["delta"].recipe.model_dump()
    assert delta["objective"] == {
        "type": "ppo-clip", "clip_low": 0.2, "clip_high": 0.28, "dual_clip": 10.0, "aggregation": "token-mean", "constant_length": None,
    }  # fmt: skip
    assert {key: delta["credit"][key] for key in ("lam_min", "lam_max", "refinements", "scope", "proxy", "temperature")} == {
        "lam_min": 0.8, "lam_max": 1.2, "refinements": 1, "scope": "batch", "proxy": "row", "temperature": "adaptive",
    }  # fmt: skip


def test_run_folder(tmp_path: Path) -> None:
    run(small_config(steps=2), tmp_path / "run")
    names = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert names >= {
        "config.toml", "env.json", "metrics.jsonl", "timing.jsonl", "plans.jsonl", "result.json", "tokens/step-000001.parquet",
        "tokens/step-000002.parquet", "lock",
    } | {f"checkpoints/step-000002/{name}" for name in (
        "model.safetensors", "optimizer.safetensors", "generators.safetensors", "state.json", "clocks.json", "manifest.json",
    )}  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert set(rows[0]) == METRICS
    plan = json.loads((tmp_path / "run" / "plans.jsonl").read_text().splitlines()[0])
    assert set(plan) == {"step", "digest", "kind", "seed", "rows", "steps"}
    assert sorted(row for step in plan["steps"] for micro in step["micro_batches"] for row in micro) == list(range(24))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(result) == {"recipe", "seed", "steps", "before", "after", "rollouts_used", "best_step", "seconds"}


@pytest.mark.parametrize("flags", [[], ["--objective.dual-clip", "None"], ["--credit.type", "uniform"]])
def test_the_written_config_is_the_run_s_config(flags: list[str]) -> None:
    from tokencredit.commands.flags import parse_train

    config = parse_train(flags).config
    import tomllib

    assert resolve([tomllib.loads(to_toml(config))]) == config
    assert validated(tomllib.loads(to_toml(config))) == config


def test_layers_go_recipe_file_flag(tmp_path: Path) -> None:
    from tokencredit.commands.flags import parse_train

    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('recipe = "dapo"\nseed = 1\n[credit]\ntype = "delta"\nlam_min = 0.5\n[objective]\nclip_high = 0.4\n')
    two.write_text("seed = 2\n[credit]\nlam_max = 1.5\n")
    config = parse_train([str(one), str(two), "--seed", "3", "--batching.type=query-preserved"]).config
    assert (config.recipe, config.seed, config.batching.type) == ("dapo", 3, "query-preserved")
    assert config.credit.model_dump(include={"type", "lam_min", "lam_max"}) == {"type": "delta", "lam_min": 0.5, "lam_max": 1.5}
    assert (config.objective.clip_low, config.objective.clip_high, config.objective.dual_clip) == (0.2, 0.4, 10.0)
    switched = parse_train([str(one), "--credit.type", "uniform"]).config
    assert switched.credit.model_dump() == {"type": "uniform"}


def test_a_task_brings_its_own_model() -> None:
    from tokencredit.commands.flags import parse_train

    assert parse_train(["--task.type", "cotadd"]).config.model == "cotadd"
    assert parse_train(["--task.type", "cotadd", "--model", "steps-shift"]).config.model == "steps-shift"


@pytest.mark.parametrize("arguments", [["train", "-h"], ["recipes"], ["train", "--dry-run"]])
def test_choosing_and_helping_load_no_torch(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['tokencredit', *{arguments!r}]\n"
        "from tokencredit.cli import main\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_recipes_shows_papers_and_stages(tmp_path: Path) -> None:
    said = tokencredit("recipes", cwd=tmp_path).stdout
    for word in (*RECIPES, "2605.21467", "2503.14476", "clip_high 0.28", "shuffled", "filter-groups"):
        assert word in said


def test_doctor_names_versions_and_extras(tmp_path: Path) -> None:
    import torch

    said = tokencredit("doctor", cwd=tmp_path).stdout
    for word in (torch.__version__, "cpu:", "extra trl", "sandbox", "bubblewrap", "steps-shift"):
        assert word in said


def test_a_run_tells_before_after_folder_and_credit(tmp_path: Path) -> None:
    looking = [word for word in SMALL if word != "--no-report"]
    done = tokencredit("train", "--steps", "2", *looking, "--diagnose.every", "1", "--diagnose.groups", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Report: runs/001-right-once/report.html" in done.stdout
    assert "<h1" in (tmp_path / "runs" / "001-right-once" / "report.html").read_text()
    for word in ("held-out accuracy", "before", "after", "runs/001-right-once", "coloured by the credit", "right", "wrong", "reinforced"):
        assert word in done.stdout
    again = tokencredit("train", "--recipe", "grpo", "--steps", "1", *SMALL, cwd=tmp_path)
    assert "runs/002-grpo" in again.stdout
    assert not (tmp_path / "runs" / "002-grpo" / "report.html").exists()
    named = [tokencredit("train", "--out", "mine", "--steps", "1", *SMALL, cwd=tmp_path) for _ in range(2)]
    assert [done.returncode for done in named] == [0, 0]
    assert (tmp_path / "mine" / "result.json").exists()
    assert (tmp_path / "mine-2" / "result.json").exists()


def test_delta_s_defaults_are_written_once_in_effect() -> None:
    """The class for files, the tuple for the algorithm and the public function must not drift apart."""
    from tokencredit.config import DeltaCredit
    from tokencredit.credit.delta.algorithm import DeltaOptions

    configured = DeltaCredit().model_dump(exclude={"type", "temperature", "constant_gamma"})
    options = DeltaOptions()._asdict()
    assert configured == {name: options[name] for name in configured}
    parameters = inspect.signature(package.delta_coefficients).parameters
    # The public function remembers nothing from call to call.
    without_past = {name: value for name, value in options.items() if name not in ("momentum", "past")}
    assert {name: parameters[name].default for name in without_past} == without_past


def test_a_task_table_may_leave_its_type_to_the_default(tmp_path: Path) -> None:
    from tokencredit.commands.flags import parse_train

    (tmp_path / "easy.toml").write_text("[task]\noperations = 3\n")
    assert parse_train([str(tmp_path / "easy.toml")]).config.task.model_dump() == {
        "type": "steps", "operations": 3, "subtract_share": 0.5,
    }  # fmt: skip


def test_help_names_every_choice(tmp_path: Path) -> None:
    said = " ".join(tokencredit("train", "-h", cwd=tmp_path).stdout.split())
    for words in (
        *(f"--{stage}.type: {', '.join(names)}" for stage, names in stored()["methods"].items() if stage in ("credit", "batching")),
        "[CONFIG.toml ...]",
    ):
        assert words in said
