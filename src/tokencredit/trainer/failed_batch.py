"""A batch that a guard refused, kept so that the bad step can be taken again: `tokencredit replay DUMP`.

A dump is a checkpoint as of the moment before the bad optimizer step, with the run's configuration, what there was of the
batch, and what the guard said.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from tokencredit.config.resolve import read_toml, resolve, to_toml
from tokencredit.errors import BadNumbersError, ConfigError
from tokencredit.optim.update import as_done, as_result
from tokencredit.pipeline.credit import MethodState
from tokencredit.pipeline.guards import STAGES, check_log_probs
from tokencredit.storage.atomic import atomic_folder, remove_folder
from tokencredit.storage.checkpoints import Place, checkpoints_in
from tokencredit.storage.manifest import damage
from tokencredit.storage.run_dir import RunDir
from tokencredit.timing import Stopwatch
from tokencredit.trainer.checkpoint import (
    Progress,
    StoredBatch,
    load_buffered,
    load_generators,
    load_optimizer,
    load_progress,
    save_batch,
    write_state,
    writing,
)
from tokencredit.trainer.preflight import GOLD_FILE
from tokencredit.trainer.step import Attempt, GatheredBatch, Stepper
from tokencredit.types import TokenScores

REFUSAL = "refusal.json"
KEPT = 3
"""Dumps of a run; each holds the weights and the optimizer, so older ones go."""


def dump_failed_batch(
    stepper: Stepper, progress: Progress, attempt: Attempt, bad: BadNumbersError, run: Path, generators: Mapping[str, Tensor]
) -> Path:
    parent = run / "guards"
    folder = parent / Place(progress.step + 1, len(attempt.taken)).name
    if folder.exists():
        remove_folder(folder)
    with writing(folder), atomic_folder(folder) as fresh:
        write_state(stepper.policy, stepper.optimizer, progress, fresh, generators)
        if (run / GOLD_FILE).is_file():
            shutil.copyfile(run / GOLD_FILE, fresh / GOLD_FILE)
        (fresh / "config.toml").write_text(to_toml(stepper.config), encoding="utf-8")
        said = {"step": progress.step + 1, "stage": bad.stage, "message": str(bad), "rows": list(bad.rows)}
        (fresh / REFUSAL).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        if attempt.gathered is not None:
            save_batch(fresh, attempt.gathered, attempt.planned, as_result(attempt.taken))
    others = [path for _, path in checkpoints_in(parent) if path != folder]
    for older in others[: max(0, len(others) + 1 - KEPT)]:
        remove_folder(older)
    return folder


class ReplayResult(NamedTuple):
    refusal: dict[str, Any]
    again: BadNumbersError | None
    """What the same guard, or another, says now; None where every number is finite now."""
    passed: tuple[str, ...]
    """Stages found finite before that."""
    fresh_log_probs: str
    """Whether a new pass over the dumped weights gives finite log-probs, in words."""

    @property
    def reproduced(self) -> bool:
        return self.again is not None and (self.again.stage, list(self.again.rows)) == (self.refusal["stage"], self.refusal["rows"])


def replay(dump: Path) -> ReplayResult:
    """Take the refused step again, on the dumped weights and batch. Nothing is written."""
    wrong = damage(dump) if dump.is_dir() else "there is no such folder"
    if wrong is not None or not (dump / REFUSAL).is_file():
        raise ConfigError(f"dump {dump} cannot be replayed: {wrong or 'it holds no refused batch'}; give a folder below RUN/guards")
    refusal = json.loads((dump / REFUSAL).read_text(encoding="utf-8"))
    config = resolve([read_toml(dump / "config.toml")])
    stepper, progress = Stepper(config, source=str(dump)), load_progress(dump)
    stepper.check_gold(RunDir(dump))
    load_optimizer(stepper.optimizer, dump)
    load_generators(dump)
    stored = load_buffered(dump, stepper.policy.device)
    said = "the batch could not even be sampled" if stored is None else _score_again(stepper, stored.gathered)
    try:
        planned = None if stored is None else stored.planned
        if planned is None:
            # Never held by a name: hidden states are gone once the credit is assigned, as in training.
            planned = stepper.plan(progress.step, _gathered(stepper, progress, stored), MethodState(**progress.stage_state), Stopwatch())
        stepper.take(progress.step, planned, Stopwatch(), taken=None if stored is None else as_done(stored.taken))
    except BadNumbersError as bad:
        return ReplayResult(refusal, bad, STAGES[: STAGES.index(bad.stage)], said)
    return ReplayResult(refusal, None, STAGES, said)


def _gathered(stepper: Stepper, progress: Progress, stored: StoredBatch | None) -> GatheredBatch:
    """Hidden states are not dumped; the dumped weights give them again."""
    if stored is None:
        return stepper.gather(progress.step, Stopwatch())
    gathered = stored.gathered
    if not stepper.pipeline.keeps_hidden:
        return gathered
    found = _scored(stepper, gathered, keep_hidden=True)
    return gathered._replace(evidence=gathered.evidence._replace(hidden=found.hidden, features=found.features))


def _scored(stepper: Stepper, gathered: GatheredBatch, *, keep_hidden: bool) -> TokenScores:
    policy = stepper.policy
    return stepper.pipeline.score_tokens(
        policy.model, gathered.rollouts, keep_hidden=keep_hidden, passes=stepper.passes, free_memory=policy.release
    )


def _score_again(stepper: Stepper, gathered: GatheredBatch) -> str:
    found = _scored(stepper, gathered, keep_hidden=False)
    try:
        check_log_probs(found.logp, gathered.rollouts.mask)
    except BadNumbersError as bad:
        return f"a new pass over the same weights: {bad}"
    return "a new pass over the same weights gives finite log-probs for every response"
