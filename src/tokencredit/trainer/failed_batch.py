"""Dump a batch that a guard refused, and replay it: `tokencredit replay DUMP`.

A dump is a checkpoint of the state before the bad optimizer step, with the run's configuration, the batch as far as it got, and
the guard's message.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from tokencredit.config.resolve import read_toml, resolve, to_toml
from tokencredit.errors import BadNumbersError, ConfigError
from tokencredit.pipeline.guards import STAGES, check_log_probs
from tokencredit.rollout.collect import CollectedBatch
from tokencredit.storage.atomic import atomic_folder, remove_folder
from tokencredit.storage.checkpoints import CheckpointPosition, checkpoints_in
from tokencredit.storage.manifest import damage
from tokencredit.storage.run_dir import RunDir
from tokencredit.trainer.checkpoint import (
    TrainState,
    load_generators,
    load_optimizer,
    load_pending,
    load_train_state,
    save_batch,
    write_state,
    writing,
)
from tokencredit.trainer.preflight import GOLD_FILE
from tokencredit.trainer.step import PolicyTrainer, StepState

REFUSAL = "refusal.json"
KEPT = 3
"""Dumps kept per run; each holds weights and optimizer state, so older ones are removed."""


def dump_failed_batch(trainer: PolicyTrainer, state: TrainState, batch: StepState, run: Path, generators: Mapping[str, Tensor]) -> Path:
    """Save the state before the refused optimizer step, with the batch and the refusal, below RUN/guards."""
    bad = batch.refusal
    assert bad is not None
    parent = run / "guards"
    folder = parent / CheckpointPosition(state.step + 1, len(batch.done)).name
    if folder.exists():
        remove_folder(folder)
    with writing(folder), atomic_folder(folder) as fresh:
        write_state(trainer.policy, trainer.optimizer, state, fresh, generators)
        if (run / GOLD_FILE).is_file():
            shutil.copyfile(run / GOLD_FILE, fresh / GOLD_FILE)
        (fresh / "config.toml").write_text(to_toml(trainer.config), encoding="utf-8")
        refusal = {"step": state.step + 1, "stage": bad.stage, "message": str(bad), "rows": list(bad.rows)}
        (fresh / REFUSAL).write_text(json.dumps(refusal, indent=2) + "\n", encoding="utf-8")
        if batch.collected is not None:
            save_batch(fresh, batch)
    others = [path for _, path in checkpoints_in(parent) if path != folder]
    for older in others[: max(0, len(others) + 1 - KEPT)]:
        remove_folder(older)
    return folder


class ReplayResult(NamedTuple):
    refusal: dict[str, Any]
    again: BadNumbersError | None
    """The refusal of the replay, by the same guard or another; None where every number is finite now."""
    passed: tuple[str, ...]
    """Stages with finite numbers before that."""
    fresh_log_probs: str
    """A sentence: does a new pass with the dumped weights give finite log-probs?"""

    @property
    def reproduced(self) -> bool:
        return self.again is not None and (self.again.stage, list(self.again.rows)) == (self.refusal["stage"], self.refusal["rows"])


def replay(dump: Path) -> ReplayResult:
    """Repeat the refused step with the dumped weights and batch. Writes nothing."""
    wrong = damage(dump) if dump.is_dir() else "there is no such folder"
    if wrong is not None or not (dump / REFUSAL).is_file():
        raise ConfigError(f"dump {dump} cannot be replayed: {wrong or 'it holds no refused batch'}; give a folder below RUN/guards")
    refusal = json.loads((dump / REFUSAL).read_text(encoding="utf-8"))
    config = resolve([read_toml(dump / "config.toml")])
    trainer, state = PolicyTrainer(config, source=str(dump)), load_train_state(dump)
    trainer.check_gold(RunDir(dump))
    load_optimizer(trainer.optimizer, dump)
    load_generators(dump)
    batch = load_pending(dump, trainer.policy.device)
    fresh = "the batch could not even be sampled" if batch is None else _score_again(trainer, batch)
    batch = batch or StepState(number=state.step)
    try:
        if batch.plan is None:
            if batch.collected is None:
                trainer.collect(batch)
                trainer.score(batch)
                trainer.sample_extra(batch)
            elif trainer.pipeline.keeps_hidden:
                batch.collected = _with_hidden(trainer, batch.collected)
            trainer.credit(batch, state.methods)
            trainer.plan(batch)
        trainer.update(batch)
    except BadNumbersError as bad:
        return ReplayResult(refusal, bad, STAGES[: STAGES.index(bad.stage)], fresh)
    return ReplayResult(refusal, None, STAGES, fresh)


def _with_hidden(trainer: PolicyTrainer, collected: CollectedBatch) -> CollectedBatch:
    """Recompute the hidden states, which are not dumped."""
    found = trainer.score_rollouts(collected.rollouts, keep_hidden=True)
    return collected._replace(evidence=collected.evidence._replace(hidden=found.hidden, features=found.features))


def _score_again(trainer: PolicyTrainer, batch: StepState) -> str:
    assert batch.collected is not None
    rollouts = batch.collected.rollouts
    found = trainer.score_rollouts(rollouts, keep_hidden=False)
    try:
        check_log_probs(found.logp, rollouts.mask)
    except BadNumbersError as bad:
        return f"a new pass over the same weights: {bad}"
    return "a new pass over the same weights gives finite log-probs for every response"
