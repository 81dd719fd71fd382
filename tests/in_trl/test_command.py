"""`tokencredit train --engine trl`: the run folder of the local engine, trained by TRL; resumed, refused, on two processes."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from accelerate import Accelerator
from pyarrow import parquet
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing

from engine.runs import SMALL, Silent
from tokencredit.cli import run as command
from tokencredit.config.resolve import resolve
from tokencredit.config.train import HEEDED_BY_PACKED, TrainConfig
from tokencredit.errors import ConfigError, GuardError
from tokencredit.integrations.trl.config import refuse
from tokencredit.integrations.trl.run import train
from tokencredit.models import model_folder
from tokencredit.policy.policy import load_policy
from tokencredit.tasks.steps import Steps
from tokencredit.trainer import loop as local
from tokencredit.trainer.loop import TrainResult
from tokencredit.trainer.signals import StopSignal

FLAGS = [
    "--recipe", "delta", "--steps", "4", "--sampling.prompts", "6", "--sampling.group-size", "4", "--optimizer.steps-per-batch", "2",
    "--save-every", "1", "--tokens-every", "1", "--evaluation.every", "2", "--evaluation.problems", "16", "--evaluation.samples", "2",
    "--evaluation.final-problems", "16", "--evaluation.final-samples", "2",
]  # fmt: skip
"""`SMALL` as flags."""
ONLY_LOCAL = {"sampling/sampling_logp_difference/mean"}


def run(folder: Path, *, stop_after: int | None = None, resume: bool = False, **changes: Any) -> TrainResult:
    stop = StopSignal()

    def maybe_stop(step: int) -> None:
        if step == stop_after:
            stop.number = 2

    return train(resolve([SMALL, {"engine": "trl"}, changes]), folder, Silent(maybe_stop), stop, resume=resume)


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def tokens(folder: Path, step: int) -> dict[str, list[Any]]:
    return parquet.read_table(folder / "tokens" / f"step-{step:06}.parquet").to_pydict()


def weights(folder: Path, optimizer_steps: int = 8) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"checkpoint-{optimizer_steps}" / "model.safetensors")


def contents(folder: Path) -> dict[Path, bytes]:
    """All but who holds the lock."""
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "lock"}


def trained_on(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("held_out/")}


def assert_same_run(one: Path, other: Path) -> None:
    for name in ("metrics.jsonl", "plans.jsonl", "tokens/step-000004.parquet"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert [row["step"] for row in rows(other, "timing.jsonl")] == [1, 2, 3, 4]
    first, second = weights(one), weights(other)
    assert all(torch.equal(first[name], second[name]) for name in first)
    ended = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    assert ended[0] | {"seconds": {}} == ended[1] | {"seconds": {}}


@pytest.fixture(scope="module")
def by_trl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trl") / "run"
    assert command(["train", "--engine", "trl", "--out", str(folder), *FLAGS]) == 0
    return folder


@pytest.fixture(scope="module")
def by_local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local") / "run"
    local.train(resolve([SMALL]), folder)
    return folder


def test_the_folder_is_the_local_engine_s(by_trl: Path, by_local: Path) -> None:
    def names(folder: Path) -> set[str]:
        files = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        return {name for name in files if not name.startswith(("checkpoints/", "model/")) and name != "report.html"}

    assert names(by_trl) == names(by_local)
    assert [set(row) for row in rows(by_trl)] == [set(row) - ONLY_LOCAL for row in rows(by_local)]
    told, alone = (json.loads((folder / "result.json").read_text()) for folder in (by_trl, by_local))
    assert set(told) == set(alone)
    assert told["before"] == alone["before"]
    assert set(tokens(by_trl, 1)) == set(tokens(by_local, 1))
    assert (model_folder(str(by_trl)) / "model.safetensors").is_file()
    environment = json.loads((by_trl / "env.json").read_text())
    assert environment["packages"]["trl"].startswith("1.")
    assert environment["processes"] == 1


def test_problems_rates_and_counts_are_the_local_engine_s(by_trl: Path, by_local: Path) -> None:
    def asked(folder: Path, step: int) -> dict[int, str]:
        columns = tokens(folder, step)
        return dict(zip(columns["group"], columns["prompt"], strict=True))

    for step in range(1, 5):
        assert asked(by_trl, step) == asked(by_local, step)
    assert asked(by_trl, 1) != asked(by_trl, 2)
    for ours, theirs in zip(rows(by_local), rows(by_trl), strict=True):
        assert theirs["learning_rate"] == pytest.approx(ours["learning_rate"], rel=1e-12)
        assert (theirs["step"], theirs["rollouts_used"], theirs["optimizer_steps"]) == (ours["step"], ours["rollouts_used"], 2)
        assert theirs["entropy"] == pytest.approx(ours["entropy"], rel=0.2)


def test_rows_tell_what_the_tokens_say(by_trl: Path) -> None:
    """Read from the token file, not from what TRL logged: mean entropy, score, credit of graded tokens."""
    row, columns = rows(by_trl)[0], tokens(by_trl, 1)
    assert row["tokens"] == len(columns["row"])
    assert row["entropy"] == pytest.approx(sum(columns["entropy"]) / len(columns["entropy"]), rel=1e-5)
    scores = dict(zip(columns["row"], columns["score"], strict=True))
    assert row["score"] == pytest.approx(sum(scores.values()) / 24)
    assert max(columns["logp"]) <= 1e-6 < -sum(columns["logp"])
    assert columns["behavior_logp"] == [None] * row["tokens"]
    assert columns["credit"] == pytest.approx(
        [one * two for one, two in zip(columns["advantage"], columns["coefficient"], strict=True)], rel=1e-4
    )
    history = json.loads((by_trl / "checkpoints" / "checkpoint-8" / "trainer_state.json").read_text())["log_history"]
    assert row["loss"] == pytest.approx((history[0]["loss"] + history[1]["loss"]) / 2)
    assert row["grad_norm"] == pytest.approx((history[0]["grad_norm"] + history[1]["grad_norm"]) / 2)
    assert history[0]["loss"] != history[1]["loss"]


def test_report_and_show_work(by_trl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "<h1" in (by_trl / "report.html").read_text()
    assert command(["show", str(by_trl)]) == 0
    assert tokens(by_trl, 4)["prompt"][0] in capsys.readouterr().out


def test_what_a_person_sees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["train", "--engine", "trl", "--out", str(tmp_path / "run"), "--no-report", *FLAGS, "--steps", "1"]) == 0
    said = capsys.readouterr().out
    for words in ("(diagnose) needs the local engine", "Held-out accuracy before training: greedy", "step    1  reward"):
        assert said.count(words) == 1, words
    for words in ("held-out accuracy, 16 problems", "24 rollouts in", "coloured by the credit"):
        assert words in said
    assert "{'loss'" not in said


def test_a_dry_run_prints_the_configuration_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["train", "--engine", "trl", "--out", str(tmp_path / "run"), "--dry-run"]) == 0
    assert 'engine = "trl"' in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_stopped_run_goes_on_as_if_it_had_not_been(by_trl: Path, tmp_path: Path) -> None:
    stopped = run(tmp_path / "run", stop_after=2, save_every=0)
    assert stopped.interrupted
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2]
    # As a crash leaves it: a row that no checkpoint knows of, and a newer checkpoint that is not whole.
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "score": 9.0}\n')
    half = tmp_path / "run" / "checkpoints" / "checkpoint-6"
    shutil.copytree(tmp_path / "run" / "checkpoints" / "checkpoint-4", half)
    (half / "run.json").unlink()
    (half / "model.safetensors").write_bytes(b"")
    assert command(["train", "--resume", str(tmp_path / "run")]) == 0
    assert_same_run(by_trl, tmp_path / "run")


def test_a_run_that_ended_before_its_last_evaluation_is_finished_by_resuming(by_trl: Path, tmp_path: Path) -> None:
    shutil.copytree(by_trl, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    assert not run(tmp_path / "run", resume=True).interrupted
    assert_same_run(by_trl, tmp_path / "run")


def test_methods_that_remember_go_on_remembering(tmp_path: Path) -> None:
    """FADE's controller: its number after a resume depends on what it was before."""
    run(tmp_path / "whole", recipe="fade", evaluation={"every": 0})
    run(tmp_path / "cut", recipe="fade", evaluation={"every": 0}, stop_after=3)
    run(tmp_path / "cut", recipe="fade", evaluation={"every": 0}, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    remembered = [name for name in rows(tmp_path / "whole")[-1] if name.startswith("advantage/")]
    assert remembered


def test_the_best_step_is_remembered_over_a_resume(tmp_path: Path) -> None:
    """A rate that ruins the policy: the first evaluation stays the best."""
    ruinous = {"optimizer": {"learning_rate": 0.05}, "evaluation": {"every": 1}}
    run(tmp_path / "run", stop_after=3, **ruinous)
    best = (model_folder(str(tmp_path / "run")) / "model.safetensors").read_bytes()
    run(tmp_path / "run", resume=True, **ruinous)
    accuracy = {row["step"]: row["held_out/sampled"] for row in rows(tmp_path / "run")}
    right = max(accuracy, key=lambda step: accuracy[step])
    assert right < 4
    assert json.loads((tmp_path / "run" / "result.json").read_text())["best_step"] == right
    assert (model_folder(str(tmp_path / "run")) / "model.safetensors").read_bytes() == best


def test_without_save_best_the_last_policy_is_the_model(tmp_path: Path) -> None:
    ruinous = {"optimizer": {"learning_rate": 0.05}, "evaluation": {"every": 1}}
    run(tmp_path / "run", save_best=False, **ruinous)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["best_step"] < 4
    assert model_folder(str(tmp_path / "run")).name == "step-000004"


def test_evaluating_never_changes_training(by_trl: Path, tmp_path: Path) -> None:
    run(tmp_path / "run", evaluation={"every": 0}, save_every=0)
    assert [trained_on(row) for row in rows(tmp_path / "run")] == [trained_on(row) for row in rows(by_trl)]
    assert any(name.startswith("held_out/") for name in rows(by_trl)[1])
    assert json.loads((tmp_path / "run" / "result.json").read_text())["best_step"] == 4
    assert (model_folder(str(tmp_path / "run")) / "model.safetensors").is_file()


def test_a_small_token_budget_changes_no_gradient(by_trl: Path, tmp_path: Path) -> None:
    """12 rows of an optimizer step in one pass, or in six."""
    run(tmp_path / "run", optimizer={"max_tokens": 130}, steps=2)
    arguments = json.loads((tmp_path / "run" / "checkpoints" / "checkpoint-4" / "trainer_state.json").read_text())
    assert arguments["train_batch_size"] == 2
    whole, cut = rows(by_trl)[0], rows(tmp_path / "run")[0]
    for name in ("loss", "grad_norm", "entropy", "score"):
        assert cut[name] == pytest.approx(whole[name], rel=1e-4), name


def test_prompts_are_read_as_the_local_engine_reads_them(tmp_path: Path) -> None:
    """A tokenizer that puts a token before every text; the recorder stops the run if TRL's prompts are not ours."""
    policy = load_policy("steps-shift", device=torch.device("cpu"), dtype="float32")
    end = policy.tokenizer.eos_token
    policy.tokenizer._tokenizer.post_processor = TemplateProcessing(single=f"{end} $A", special_tokens=[(end, policy.end_tokens[0])])
    assert policy.tokenizer("1+1")["input_ids"][0] == policy.end_tokens[0] != policy.encode("1+1")[0]
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    run(tmp_path / "run", model=str(tmp_path / "model"), steps=1)
    run(tmp_path / "plain", steps=1)
    assert tokens(tmp_path / "run", 1)["token_id"] == tokens(tmp_path / "plain", 1)["token_id"]


def test_another_prompt_than_asked_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokencredit.integrations.trl import run as module

    as_dataset = module.as_dataset
    monkeypatch.setattr(module, "as_dataset", lambda problems: as_dataset([list(reversed(batch)) for batch in problems]))
    with pytest.raises(GuardError, match="another prompt than number 0 of training step 1"):
        run(tmp_path / "run", steps=1)


def test_what_cannot_be_graded_is_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grade = Steps.grade
    monkeypatch.setattr(Steps, "grade", lambda self, problem, text: math.nan if text.startswith("b") else grade(self, problem, text))
    run(tmp_path / "run", steps=1)
    row, columns = rows(tmp_path / "run")[0], tokens(tmp_path / "run", 1)
    verdicts = dict(zip(columns["row"], columns["score"], strict=True))
    assert row["ungraded"] == sum(value is None for value in verdicts.values()) > 0
    assert all(credit == 0 for credit, score in zip(columns["credit"], columns["score"], strict=True) if score is None)


def test_a_gradient_that_is_not_finite_stops_before_the_weights_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accelerator, "clip_grad_norm_", lambda *_: torch.tensor(float("nan")))
    steps: list[None] = []
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_, **__: steps.append(None))
    with pytest.raises(GuardError, match="gradient norm is nan in optimizer step 1; this step was not taken"):
        run(tmp_path / "run", steps=1)
    assert not steps


def test_without_a_scoring_pass_the_tokens_say_so(tmp_path: Path) -> None:
    """One optimizer step per batch and a recipe that reads no log-probs: TRL makes no pass before the one that trains."""
    run(tmp_path / "run", recipe="grpo", optimizer={"steps_per_batch": 1}, kl={"beta": 0.1}, steps=2)
    columns, told = tokens(tmp_path / "run", 2), rows(tmp_path / "run")
    assert columns["logp"] == columns["entropy"] == [None] * len(columns["row"])
    assert [row["entropy"] for row in told] == pytest.approx([0.28, 0.28], rel=0.2)
    assert told[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert 0 < abs(told[1]["kl"]) < 0.1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"diagnose": {"every": 5}}, "diagnose.every is 5, but only the local engine observes updates; set diagnose.every to 0"),
        ({"keep_every": 5}, "keep_every is 5, but only the local engine"),
        ({"dtype": "float64"}, "dtype is 'float64', but TRL trains in float32 or bfloat16"),
        ({"weights": "bfloat16", "dtype": "bfloat16"}, "weights is 'bfloat16', but only the local engine keeps weights in bfloat16"),
        ({"lora": {"rank": 2}}, "lora.rank is 2, but only the local engine adds adapters to a run; set it to 0"),
        ({"optimizer": {"steps_per_batch": 2, "gradient_checkpointing": True}}, "optimizer.gradient_checkpointing is true, but only"),
        ({"scoring": "sampler"}, "scoring is 'sampler', but TRL scores tokens in a pass of its own"),
        ({"sampler": "plain"}, "sampler is 'plain', but TRL runs sampling and forward passes itself; use 'auto'"),
        ({"passes": "packed"}, "passes is 'packed', but TRL runs sampling and forward passes"),
        ({"compile": "off"}, "compile is 'off', but TRL runs sampling and forward passes"),
        ({"features": "host"}, "features is 'host', but TRL runs sampling and forward passes"),
        ({"features_gib": 2.0}, "features_gib is 2, but TRL keeps no hidden states of packed passes; leave it at 8"),
        ({"sampling": {"group_size": 1}, "recipe": "reinforce++"}, "sampling.group_size is 1, but TRL compares at least 2"),
        ({"seed": 2**32}, "seed is 4294967296, but TRL takes seeds below 4294967296"),
        ({"device": "cuda"}, "device is 'cuda' but torch sees no CUDA device"),
        ({"recipe": "dapo-dynamic"}, "filter_groups samples replacements for groups without spread, which TRL cannot"),
        ({"recipe": "ibpo"}, "the recipe asks the policy to revise failed responses, which TRL is not asked to do"),
        ({"recipe": "vineppo"}, "the recipe continues responses from the middle, which TRL is not asked to do"),
        ({"recipe": "remax"}, "the recipe compares with the policy's greedy response, which TRL is not asked to do"),
        ({"correction": {"kind": "tis"}}, "correction.kind is 'tis', but without use_vllm the trainer is the sampler"),
        ({"sampling": {"prompts": 5}, "optimizer": {"steps_per_batch": 3}}, "group_size is 20, but TRL deals equal shares to 3 optimizer"),
        ({"sampling": {"prompts": 5}, "batching": {"type": "query-preserved"}}, "a batch of generations holds 5 prompts for 2 optimizer"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_trl_cannot_honour_is_refused(changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = resolve([SMALL, {"engine": "trl"}, changes])
    with pytest.raises(ConfigError) as refused:
        refuse(config)
    assert words in str(refused.value)
    with pytest.raises(ConfigError):
        train(config, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_whatever_only_packed_passes_heed_is_refused() -> None:
    for name in HEEDED_BY_PACKED:
        for value in set(get_args(TrainConfig.model_fields[name].annotation)) - {"auto"}:
            with pytest.raises(ConfigError, match=f"{name} is '{value}', but TRL"):
                refuse(resolve([SMALL, {"engine": "trl", name: value}]))


def test_a_model_that_cannot_read_the_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no tokens for prompts of task 'steps'"):
        run(tmp_path / "run", model="cotadd")
    assert not list(tmp_path.iterdir())


def test_a_trainer_that_refuses_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokencredit.integrations.trl import trainer

    def unfit(*_: Any) -> None:
        raise ConfigError("another loss")

    monkeypatch.setattr(trainer, "check_credit_reaches_gradient", unfit)
    with pytest.raises(ConfigError, match="another loss"):
        run(tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", [lambda folder: shutil.rmtree(folder / "checkpoints"), lambda folder: _forget_progress(folder)])
def test_nothing_to_resume_from_is_said(by_trl: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    shutil.copytree(by_trl, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    damage(tmp_path / "run")
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="has no checkpoint to continue from"):
        command(["train", "--resume", str(tmp_path / "run")])
    assert contents(tmp_path) == before


def _forget_progress(folder: Path) -> None:
    for file in folder.rglob("run.json"):
        file.write_text("{")


def test_two_processes_make_one_run(by_local: Path, tmp_path: Path) -> None:
    """Only the first writes and prints; both share the batch; one alone cannot go on from their checkpoint."""
    words = ["train", "--engine", "trl", "--no-report", *FLAGS, "--steps", "2"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tokencredit", *words]
    done = subprocess.run(
        launch, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["001-delta"]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert done.stdout.count("Held-out accuracy before") == done.stdout.count("held-out accuracy") == 1
    folder = tmp_path / "runs" / "001-delta"
    told = rows(folder)
    assert [row["step"] for row in told] == [1, 2]
    assert [row["rollouts_used"] for row in told] == [24, 48]
    assert [row["learning_rate"] for row in told] == pytest.approx([5e-4 / 3, 2 * 5e-4 / 3 * 0.1], rel=1e-12)
    assert len(set(tokens(folder, 1)["row"])) == 24
    assert dict(zip(tokens(folder, 1)["group"], tokens(folder, 1)["prompt"], strict=True)) == dict(
        zip(tokens(by_local, 1)["group"], tokens(by_local, 1)["prompt"], strict=True)
    )
    saved = {path.name for path in (folder / "checkpoints" / "checkpoint-4").glob("tokencredit_*")}
    assert saved == {"tokencredit_0.pt", "tokencredit_1.pt"}
    assert json.loads((folder / "env.json").read_text())["processes"] == 2
    (folder / "result.json").unlink()
    before = contents(folder)
    with pytest.raises(ConfigError, match="was written by 2 processes, but there are 1; use as many"):
        command(["train", "--resume", str(folder)])
    assert contents(folder) == before
