"""Which ways a run took where it was left to choose is in its record, and in its report: fast or not, and again where it goes on."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from engine.runs import rows_of, run, small_config
from tiny import tiny_policy
from tokencredit.config.resolve import resolve
from tokencredit.forward import modes as passes_module
from tokencredit.forward.modes import PADDED, ForwardMode, choose_forward_mode
from tokencredit.report.methods import methods
from tokencredit.report.run_reader import Run
from tokencredit.rollout.scoring import credit_pipeline
from tokencredit.trainer import fast_paths
from tokencredit.trainer.fast_paths import explain_fast_paths


class FastSampler:
    """Named as the real one."""


def taken(chosen: ForwardMode, *, kind: str = "cuda", draws: Any = None, **given: Any) -> dict[str, tuple[str, str]]:
    config = resolve([{"recipe": "delta", "dtype": "bfloat16", "diagnose": {"every": 0}, **given}])
    model = SimpleNamespace(
        device=torch.device(kind), config=LlamaConfig(hidden_size=64, num_attention_heads=1), num_parameters=lambda: 10**6
    )
    policy: Any = SimpleNamespace(device=torch.device(kind), model=model, sampler=draws)
    return {name: (way["taken"], way["why"]) for name, way in explain_fast_paths(config, policy, chosen, credit_pipeline(config)).items()}


def test_every_way_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_paths, "unsupported_reason", lambda policy, dtype: "its layers are odd")
    monkeypatch.setattr(fast_paths, "packing_unsupported_reason", lambda model: "it has a window")
    monkeypatch.setattr(passes_module, "triton_unavailable_reason", lambda: None)
    best = "the fastest available here"
    assert taken(ForwardMode(packed=True, compiled=True), draws=FastSampler()) == {
        "sampler": ("FastSampler", best),
        "passes": ("packed", best),
        "compile": ("on", best),
        "features": ("device or host", "on the device while they fit into 8 GiB"),
    }
    assert taken(PADDED) == {
        "sampler": ("plain", "its layers are odd"),
        "passes": ("padded", "it has a window"),
        "compile": ("off", "passes are padded"),
        "features": ("device", "padded passes keep them there"),
    }
    assert taken(PADDED, kind="cpu", recipe="dapo") == {
        "sampler": ("plain", "the model is not on a GPU"),
        "passes": ("padded", "the model is not on a GPU"),
        "compile": ("off", "passes are padded"),
        "features": ("none", "no stage reads hidden states"),
    }
    assert taken(ForwardMode(packed=True))["compile"] == ("off", "it has 1,000,000 parameters, and below 50,000,000 it is not worth it")
    slow = taken(
        ForwardMode(packed=True), dtype="float32", features="host", scoring="pass", compile="off", passes="packed", sampler="plain"
    )
    assert slow == {
        "sampler": ("plain", "requested"),
        "passes": ("packed", "requested"),
        "compile": ("off", "requested"),
        "features": ("host", "requested"),
    }
    assert taken(PADDED, dtype="float32")["sampler"] == ("plain", "dtype is 'float32'")
    assert taken(PADDED, dtype="float32")["features"] == ("device", "kept by the sampler")


def test_the_size_below_which_a_model_is_not_compiled_is_the_one_that_is_told() -> None:
    """What is told and what is done come from one question."""
    policy = tiny_policy(torch.float32)
    config = resolve([{"passes": "packed"}])
    passes = choose_forward_mode(config, policy.model)
    told = explain_fast_paths(config, replace(policy, sampler=None), passes, credit_pipeline(config))
    assert (passes.compiled, told["compile"]["taken"], told["compile"]["why"]) == (False, "off", "the model is not on a GPU")


def test_a_run_and_every_resume_of_it_write_them_down(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(small_config(steps=2), folder, stop_after=1)
    written = json.loads((folder / "env.json").read_text())["ways"]
    assert {name: way["taken"] for name, way in written.items()} == {
        "sampler": "plain", "passes": "padded", "compile": "off", "features": "device",
    }  # fmt: skip
    run(small_config(steps=2, passes="packed"), folder, resume=True)
    assert json.loads((folder / "env.json").read_text())["ways"] == written
    assert [row["ways"]["passes"] for row in rows_of(folder, "resumes.jsonl")] == [{"taken": "packed", "why": "requested"}]


def setting(folder: Path, name: str) -> str:
    return next(one.value for one in methods(Run(folder)).others if one.path == name)


def test_the_report_says_what_auto_came_to(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(small_config(steps=1, sampler="plain"), folder)
    assert setting(folder, "passes") == "auto; chosen: padded (the model is not on a GPU)"
    assert setting(folder, "sampler") == "plain"
    (folder / "resumes.jsonl").write_text('{"step": 1, "ways": {"passes": {"taken": "packed", "why": "a better\\u001b machine"}}}\n')
    assert setting(folder, "passes").startswith("auto; chosen: packed (a better")
    assert "\x1b" not in setting(folder, "passes")
    for odd in ("[]", '{"passes": "packed"}', '{"passes": {"taken": 1}}'):
        (folder / "resumes.jsonl").write_text(f'{{"step": 1, "ways": {odd}}}\n')
        assert setting(folder, "passes").startswith("auto")
