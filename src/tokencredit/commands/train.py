"""`tokencredit train`: flags in, a run folder and a few words out."""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from tokencredit.bases import model_folder
from tokencredit.commands.flags import TrainOptions, parse_train
from tokencredit.commands.output import choose_folder
from tokencredit.compose import read_toml, resolve, to_toml
from tokencredit.config import TrainConfig
from tokencredit.errors import EXIT_OK, ConfigError

TRL_TRAINS = "TRL trains and saves checkpoints; looks at what an update did (diagnose) are the local engine's and are left out."


def _is_first_process() -> bool:
    """Of those that torchrun or accelerate started; it alone chooses the folder, writes and prints."""
    return os.environ.get("RANK", "0") == "0"


def _resumed(options: TrainOptions, arguments: Sequence[str]) -> TrainOptions:
    folder = options.resume
    assert folder is not None
    given = [word for word in arguments if not word.startswith("--resume") and Path(word) != folder]
    if given:
        raise ConfigError(f"--resume continues {folder} as it was configured; leave out {' '.join(given)}")
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"resume {folder} is not a run folder: it has no config.toml")
    if (folder / "result.json").is_file():
        raise ConfigError(f"resume {folder} is a finished run; nothing is left to do")
    config = resolve([read_toml(folder / "config.toml")])
    # Which of TRL's checkpoints are whole is for its engine to say.
    if config.engine == "local" and not any((folder / "checkpoints" / name).is_dir() for name in ("last", "last.old")):
        raise ConfigError(f"resume {folder} has no checkpoint to continue from; start it again")
    return TrainOptions(config=config, resume=folder)


def run(arguments: Sequence[str]) -> int:
    options = parse_train(arguments)
    if options.resume is not None:
        options = _resumed(options, arguments)
    model_folder(options.config.model)
    folder = options.resume or _new_folder(options)
    if options.config.engine == "trl":
        _refuse_for_trl(options.config)
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
    from tokencredit.engine.versions import require

    require("trl")
    from tokencredit.engine.trl.configured import refuse

    refuse(config)


def _train(options: TrainOptions, folder: Path) -> int:
    """Everything that needs torch is loaded from here on."""
    from tokencredit.commands.progress import make_progress, print_summary
    from tokencredit.engine.local.showcase import showcase
    from tokencredit.engine.local.signals import listening
    from tokencredit.engine.local.train import NobodyWatching, train

    shown = options.config.engine == "local" or _is_first_process()
    if options.config.engine == "trl":
        from tokencredit.engine.trl.run import train

        if shown:
            print(TRL_TRAINS)
    watched = make_progress(options.config, folder) if shown else nullcontext(NobodyWatching())
    with listening() as stop, watched as progress:
        outcome = train(options.config, folder, progress, stop, resume=options.resume is not None)
    if outcome.interrupted:
        if shown:
            print(f"Stopped. Continue with: tokencredit train --resume {folder}")
        return stop.exit_code
    if not shown:
        return EXIT_OK
    print_summary(outcome.result, folder, showcase(options.config, outcome.policy, outcome.task, outcome.state))
    if options.report:
        _write_report(folder)
    return EXIT_OK


def _write_report(folder: Path) -> None:
    """A finished run is not a failure because its page could not be written."""
    from tokencredit.report import write_report

    try:
        write_report([folder], folder / "report.html")
    except (ConfigError, OSError) as problem:
        print(f"The report could not be written: {problem}\nTry again with: tokencredit report {folder}", file=sys.stderr)
        return
    print(f"Report: {folder / 'report.html'}")
