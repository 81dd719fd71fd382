"""`tokencredit train`: flags in, a run folder and a few words out."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tokencredit.bases import model_folder
from tokencredit.commands.flags import TrainOptions, parse_train
from tokencredit.commands.output import choose_folder
from tokencredit.compose import read_toml, resolve, to_toml
from tokencredit.errors import EXIT_OK, ConfigError


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
    if not any((folder / "checkpoints" / name).is_dir() for name in ("last", "last.old")):
        raise ConfigError(f"resume {folder} has no checkpoint to continue from; start it again")
    return TrainOptions(config=resolve([read_toml(folder / "config.toml")]), resume=folder)


def run(arguments: Sequence[str]) -> int:
    options = parse_train(arguments)
    if options.resume is not None:
        options = _resumed(options, arguments)
    model_folder(options.config.model)
    folder = options.resume or choose_folder(options.out, recipe=options.config.recipe, exists=options.exists)
    if options.dry_run:
        print(f"# would train into {folder}\n{to_toml(options.config)}", end="")
        return EXIT_OK
    return _train(options, folder)


def _train(options: TrainOptions, folder: Path) -> int:
    """Everything that needs torch is loaded from here on."""
    from tokencredit.commands.progress import make_progress, print_summary
    from tokencredit.engine.local.showcase import showcase
    from tokencredit.engine.local.signals import listening
    from tokencredit.engine.local.train import train

    with listening() as stop, make_progress(options.config, folder) as progress:
        outcome = train(options.config, folder, progress, stop, resume=options.resume is not None)
    if outcome.interrupted:
        print(f"Stopped. Continue with: tokencredit train --resume {folder}")
        return stop.exit_code
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
