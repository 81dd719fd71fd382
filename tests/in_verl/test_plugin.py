"""What verl loads by itself: it says that it is live, or why not, and changes nothing that nobody asked for."""

import json
import os
import subprocess
import sys
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.utils.losses import ppo_loss

from conformance.stored import base_policy, stored_batches
from in_verl.stored_run import Workers, credit_stored, hydra_config, in_place_of_the_queue
from tokencredit.integrations.support import EngineUnavailableError
from tokencredit.integrations.verl import plugin
from tokencredit.integrations.verl.trainer import CreditTrainer
from tokencredit.integrations.verl.worker import CreditEngine
from verl_cpu.command import Shape, environment

LIVE = "tokencredit: the plug-in for verl 0.9.1 is live: trainer mode tokencredit, 18 recipes as tokencredit-NAME"
LOOK = """
import json, verl
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.workers.engine import EngineRegistry
tables = (ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY, TRAINER_REGISTRY)
names = [sum(str(name).startswith("tokencredit") for name in table) for table in tables]
print(json.dumps([names, EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__]))
"""
NOTHING, EVERYTHING = [[0, 0, 0], "FSDPEngineWithLMHead"], [[19, 18, 1], "CreditEngine"]


def run(code: str, **changes: str) -> tuple[Any, list[str]]:
    """What a new process printed, and what the plug-in said on stderr."""
    own = {name: value for name, value in environment().items() if name != plugin.SAID} | changes
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), [line for line in done.stderr.splitlines() if "tokencredit" in line]


def test_importing_verl_says_once_that_the_plug_in_is_live() -> None:
    """Children inherit what was said, stay silent and are no less live."""
    child = f"import subprocess, sys, verl; sys.exit(subprocess.run([sys.executable, '-c', {LOOK!r}]).returncode)"
    assert run(child) == (EVERYTHING, [LIVE])


def test_with_another_version_it_says_which_ones_work_and_registers_nothing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib import metadata\nfound = metadata.version\n"
        "metadata.version = lambda name: '0.10.0' if name == 'verl' else found(name)\n"
    )
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    words = "verl 0.10.0 is installed, but tokencredit works with verl >=0.9,<0.10 (tested on 0.9.1)"
    assert run(LOOK, PYTHONPATH=path) == (NOTHING, [f"tokencredit: the plug-in for verl is OFF: {words}"])


def test_verls_own_switch_turns_it_off() -> None:
    assert run(LOOK, VERL_USE_EXTERNAL_PLUGINS="none") == (NOTHING, [])


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The plug-in as in a process where nothing was said and nothing is registered."""
    monkeypatch.delenv(plugin.SAID, raising=False)
    from tokencredit.integrations.verl import registries, trainer, worker

    monkeypatch.setattr(registries, "register", lambda: ["one", "two"])
    for module in (trainer, worker):
        monkeypatch.setattr(module, "register", lambda: None)
    return monkeypatch


def test_a_version_that_was_not_tested_is_named(loading: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    loading.setattr(metadata, "version", lambda _: "0.9.7")
    plugin.load()
    plugin.load()
    said = "tokencredit: the plug-in for verl 0.9.7 (tested on 0.9.1) is live: trainer mode tokencredit, 2 recipes as tokencredit-NAME\n"
    assert capsys.readouterr() == ("", said)


def test_whatever_goes_wrong_is_said_before_verl_hides_it(loading: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise KeyError("no such seam")

    loading.setattr("tokencredit.integrations.verl.worker.register", broken)
    with pytest.raises(KeyError):
        plugin.load()
    assert capsys.readouterr().err == "tokencredit: the plug-in for verl is OFF: 'no such seam'\n"
    loading.setattr(metadata, "version", lambda _: "1.0.0")
    with pytest.raises(EngineUnavailableError):
        plugin.load()
    assert "OFF: verl 1.0.0 is installed, but" in capsys.readouterr().err


def test_our_engine_comes_before_verls_own_which_stays() -> None:
    for backend in ("fsdp", "fsdp2"):
        assert EngineRegistry.get_engine_cls("language_model", backend) is CreditEngine
        assert EngineRegistry._engines["language_model"][backend]["cuda"] is FSDPEngineWithLMHead
    assert not issubclass(EngineRegistry.get_engine_cls("value_model", "fsdp2"), CreditEngine)
    assert TRAINER_REGISTRY["tokencredit"] is CreditTrainer
    assert TRAINER_REGISTRY["sync"] is PPOTrainerSync


class StockTrainer(PPOTrainerSync):
    """verl's own trainer without what needs Ray."""

    use_reference_policy, use_critic, global_steps = False, False, 1

    def __init__(self, config: Any, workers: Workers) -> None:
        self.config, self.actor_rollout_wg, self.tokenizer = config, workers, base_policy().tokenizer
        self.settings = config.actor_rollout_ref.rollout
        workers.set_loss_fn(partial(ppo_loss, config=omega_conf_to_dataclass(config.actor_rollout_ref.actor)))


def test_without_a_recipe_our_engine_is_verls_to_the_bit(workers: Workers, stock_workers: Workers, tmp_path: Path) -> None:
    config = hydra_config(tmp_path, Shape(prompts=8, group_size=4, mini_batch_prompts=2), "algorithm.adv_estimator=grpo")
    batch = stored_batches()[0]
    graded = batch._replace(score=tuple(0.0 if score != score else score for score in batch.score))
    seen = []
    for chosen in (workers, stock_workers):
        chosen.start(0.01)
        chosen.cut(rows=4)
        trainer = StockTrainer(config, chosen)
        metrics: dict[str, Any] = {}
        with in_place_of_the_queue(chosen.queue):
            trainer._update_actor(credit_stored(trainer, chosen.queue, graded, metrics), metrics)
        scored = [chosen.queue.rows[key]["old_log_probs"] for key in sorted(chosen.queue.rows)]
        seen.append((torch.cat(scored), torch.stack(chosen.gradients), chosen.weights, metrics["actor/pg_loss"]))
    (ours, theirs) = seen
    for one, other in zip(ours[:3], theirs[:3], strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()
        assert one.any()
    assert ours[3] == theirs[3]
    assert len(ours[1]) == 4
