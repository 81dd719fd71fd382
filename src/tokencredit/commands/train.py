"""`tokencredit train`: train a run from config files and flags, then print a summary and write the report and the model."""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from tokencredit.commands.flags import TRAIN, TrainingKind, TrainOptions, parse_train
from tokencredit.commands.run_folder import choose_folder
from tokencredit.config.resolve import read_toml, resolve, to_toml
from tokencredit.config.resume import accepted_changes
from tokencredit.config.train import TrainConfig
from tokencredit.errors import EXIT_OK, ConfigError, StorageError
from tokencredit.models import anchored
from tokencredit.storage.run_dir import RunDir
from tokencredit.trackers import require_trackers

TRL_TRAINS = "TRL trains and saves checkpoints. Diagnosis of updates (diagnose) needs the local engine and is skipped."


def _is_first_process() -> bool:
    """Whether this is rank 0 of torchrun or accelerate. Only rank 0 chooses the folder, writes files and prints."""
    return os.environ.get("RANK", "0") == "0"


def _refuse_resume(options: TrainOptions, folder: Path, stored: TrainConfig) -> None:
    """Raise ConfigError if the run cannot be resumed with these options. The engine checks the checkpoints later."""
    config = options.config
    if options.out is not None:
        raise ConfigError(f"out is {options.out}, but --resume {folder} continues in its own folder; leave it out")
    changed = accepted_changes(stored, config)
    if config.engine != "local" and changed:
        raise ConfigError(f"{', '.join(changed)} cannot change when engine {config.engine!r} resumes a run; leave it out")
    reached = RunDir(folder).steps_reached()
    if reached >= config.steps:
        raise ConfigError(f"resume {folder} is a finished run of {reached} steps; to train further, set a larger --steps")


def run(arguments: Sequence[str], kind: TrainingKind = TRAIN) -> int:
    options = parse_train(arguments, kind)
    stored = None if options.resume is None else resolve([read_toml(options.resume / "config.toml")])
    options = replace(options, config=anchored(options.config, stored))
    if options.resume is not None and stored is not None:
        _refuse_resume(options, options.resume, stored)
    folder = options.resume or _new_folder(options)
    if options.config.engine == "trl":
        _refuse_for_trl(options.config)
    require_trackers(options.config.track.to)
    if options.dry_run:
        if _is_first_process():
            print(f"# would train into {folder}\n{to_toml(options.config)}", end="")
        return EXIT_OK
    return _train(options, folder)


def _new_folder(options: TrainOptions) -> Path:
    if not _is_first_process() and options.config.engine == "trl":
        return Path("chosen-by-the-first-process")
    return choose_folder(options.out, recipe=options.config.recipe, exists=options.exists)


def _refuse_for_trl(config: TrainConfig) -> None:
    from tokencredit.integrations.support import require

    require("trl")
    from tokencredit.integrations.trl.config import refuse

    refuse(config)


def _train(options: TrainOptions, folder: Path) -> int:
    """Train and report. torch is imported here, not at the top of the module."""
    from tokencredit.analysis.showcase import showcase
    from tokencredit.commands.progress import make_progress, print_summary
    from tokencredit.trackers.callback import TrackerCallback
    from tokencredit.trainer.callbacks import NoCallback
    from tokencredit.trainer.loop import train
    from tokencredit.trainer.signals import handle_stop_signals

    shown = options.config.engine == "local" or _is_first_process()
    if options.config.engine == "trl":
        from tokencredit.integrations.trl.run import train

        if shown:
            print(TRL_TRAINS)
    progress = make_progress(options.config, folder) if shown else nullcontext(NoCallback())
    with (
        handle_stop_signals() as stop,
        progress as shown_to_user,
        TrackerCallback(options.config, folder, shown_to_user, active=shown) as callback,
    ):
        outcome = train(options.config, folder, callback, stop, resume=options.resume is not None)
        callback.log_result(outcome.result)
    if outcome.interrupted:
        if shown:
            print(f"Stopped. Resume with: tokencredit train --resume {folder}")
        return stop.exit_code
    if not shown:
        return EXIT_OK
    print_summary(outcome.result, folder, showcase(options.config, outcome.policy, outcome.task, outcome.state))
    _write_model(folder)
    if options.report:
        _write_report(folder)
    return EXIT_OK


def _write_model(folder: Path) -> None:
    """Export the model. A failure is printed but does not fail the finished run."""
    from tokencredit.report.export import export_model

    try:
        print(f"Model: {export_model(folder)}")
    except (ConfigError, StorageError, OSError) as problem:
        print(f"The model could not be exported: {problem}\nTry again with: tokencredit export {folder}", file=sys.stderr)


def _write_report(folder: Path) -> None:
    """Write report.html. A failure is printed but does not fail the finished run."""
    from tokencredit.report import write_report

    try:
        write_report([folder], folder / "report.html")
    except (ConfigError, OSError) as problem:
        print(f"The report could not be written: {problem}\nTry again with: tokencredit report {folder}", file=sys.stderr)
        return
    print(f"Report: {folder / 'report.html'}")
