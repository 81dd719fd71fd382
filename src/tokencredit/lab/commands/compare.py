"""`tokencredit compare`: trains recipes x seeds x bases; writes paired differences as a table, a JSON and a page."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokencredit.commands.flags import TrainingKind, parse_train
from tokencredit.commands.run_folder import choose_folder
from tokencredit.config.train import TrainConfig
from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.lab.commands.compare_options import CompareOptions, parse_compare
from tokencredit.lab.compare.design import (
    RATE,
    Arm,
    Design,
    Key,
    PlannedRun,
    choose_reference,
    make_arm,
    make_design,
    number_of_runs,
    read_recipes,
    refuse_fixed_rates,
    reported_runs,
    tuning_runs,
    warn_if_group_size_overrides_recipe,
)
from tokencredit.lab.compare.document import (
    JSON_FILE,
    PAGE_FILE,
    THRESHOLD,
    advancing_recipes,
    best_rates,
    check_threshold,
    make_document,
    read_document,
    standings,
    tune,
    write_document,
)
from tokencredit.lab.compare.results import ExistingRuns, code_of, existing_runs, inspect_run
from tokencredit.lab.compare.runner import Throttle, execute, failures_of, refuse_in_use
from tokencredit.models import anchored, pinned_name
from tokencredit.report.methods import flat
from tokencredit.storage.lock import locked
from tokencredit.storage.run_dir import describe_environment
from tokencredit.text import brief

if TYPE_CHECKING:
    from tokencredit.lab.commands.compare_options import AllRuns

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
"""A run failed and the others finished; the user stopped the command."""

UNDERNEATH: Mapping[str, Any] = {"diagnose": {"every": 0}, "tokens_every": 0, "save_every": 0, "threads": 1, "evaluation": {"seed": 0}}
"""Defaults below files and flags: no microscope or checkpoints, one thread per run, the same evaluation problems."""

VARIES = ("model", "seed", "optimizer.learning_rate")
"""Settings that the JSON stores per run."""


def run(arguments: Sequence[str]) -> int:
    options, files, rest = parse_compare(arguments)
    if options.threshold is not None:
        check_threshold(options.threshold)
    if options.recipes is None:
        if options.jobs or options.out is None:
            raise ConfigError(
                "recipes is missing; name those to compare: --recipes dapo,delta (--jobs 0 --out FOLDER prints stored results)"
            )
        document = read_document(options.out, threshold=options.threshold, reference=options.reference)
        _publish(document, options.out)
        return EXIT_OK
    comparison = Comparison(options, files, rest, shlex.join(["tokencredit", "compare", *arguments]))
    if options.dry_run:
        comparison.print_plan()
        return EXIT_OK
    comparison.out.mkdir(parents=True, exist_ok=True)
    with locked(comparison.out):
        return comparison.run()


def _publish(document: dict[str, Any], out: Path) -> None:
    """Write the JSON, print the table, then write the page, whose failure loses neither."""
    from tokencredit.lab.compare.table import print_comparison
    from tokencredit.lab.pages.comparison import write_comparison

    write_document(document, out)
    print_comparison(document)
    write_comparison(document, out / PAGE_FILE)
    print(f"Numbers: {out / JSON_FILE}\nPage: {out / PAGE_FILE}")


class Comparison:
    """One comparison. The constructor reads and checks everything; only `run` writes."""

    def __init__(self, options: CompareOptions, files: Sequence[str], rest: Sequence[str], command: str) -> None:
        self.options = options
        self.threshold = THRESHOLD if options.threshold is None else options.threshold
        wanted = read_recipes(options.recipes or "")
        configure = _configurator(files, rest, save_best=options.keep_models)
        arms = [make_arm(one, configure) for one in wanted]
        reference = choose_reference(options.reference, arms)
        in_groups = [warn_if_group_size_overrides_recipe(one, arm) for one, arm in zip(wanted, arms, strict=True)]
        self.remarks = [remark for remark in in_groups if remark is not None]
        self.trained: set[Key] = set()
        """Runs of this command: used and reported even if the code changes during training."""
        self.save_partial_results = Throttle(lambda: write_document(self._document(), self.out))
        """Writes partial results during a long study."""
        refuse_fixed_rates(options.rates_read, [one.label for one in wanted if RATE in one.settings])
        self.design = make_design(
            arms,
            reference,
            self._bases(arms, reference),
            seeds=options.seeds,
            first_seed=options.first_seed,
            rates=options.rates_read,
            tune_seeds=options.tune_seeds,
            finalists=options.finalists,
            always=[one.label for one in read_recipes(options.always)] if options.always is not None else [],
        )
        self.out = _choose_out(options.out)
        environment = describe_environment()
        self.code = code_of(environment)
        self.made_by = {
            "command": command,
            **self.code._asdict(),
            **{name: environment[name] for name in ("python", "platform", "packages")},
        }
        for rate in self.design.rates or (None,):
            self._existing_runs(self._reported(rate))
        self._existing_runs(tuning_runs(self.design))

    def _bases(self, arms: Sequence[Arm], reference: str) -> dict[str, str]:
        """The base models of all recipes; by default the reference's."""
        if self.options.models is not None:
            names = [name.strip() for name in self.options.models.split(",")]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ConfigError(f"models names {', '.join(twice)} more than once; name it once")
            return {name: pinned_name(name) for name in names}
        model = next(arm.config.model for arm in arms if arm.label == reference)
        for arm in arms:
            if arm.config.model != model:
                self.remarks.append(f"The default model of {arm.label} is {arm.config.model}; here all recipes start from {model}.")
        return {model: pinned_name(model)}

    def _reported(self, rate: float | None) -> list[PlannedRun]:
        """All reported runs at one rate, before tuning has chosen one."""
        if rate is None:
            return reported_runs(self.design, {})
        return reported_runs(self.design, {(arm.label, base): rate for arm in self.design.arms for base in self.design.bases})

    def _existing_runs(self, runs: Sequence[PlannedRun]) -> ExistingRuns:
        existing = existing_runs(runs, self.out, code=self.code, stale=self.options.stale)
        if self.options.jobs:
            for planned in existing.to_do:
                refuse_in_use(planned, self.out)
        return existing

    def print_plan(self) -> None:
        design = self.design
        self._print_remarks()
        print(f"# would compare in {self.out}: {number_of_runs(design)} runs, {self.options.jobs} at a time")
        for planned in tuning_runs(design) or reported_runs(design, {}):
            print(brief(planned.description))
        if design.tunes:
            who = "every recipe" if design.finalists is None else f"each of the best {design.finalists} and of those always included"
            print(f"# then seeds {design.seeds[0]} to {design.seeds[-1]} of {who} and base at its best rate")

    def _print_remarks(self) -> None:
        """Print the warnings before any run starts."""
        for remark in self.remarks:
            print(brief(f"note: {remark}", 2000), flush=True)

    def run(self) -> int:
        from tokencredit.lab.commands.compare_options import watching

        code = EXIT_OK
        if self.options.jobs:
            self._print_remarks()
        # The JSON marks the folder as a comparison from the start.
        write_document(self._document(), self.out)
        try:
            if self.options.jobs:
                with watching(number_of_runs(self.design), self._finish) as watcher:
                    code = self._work(watcher)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        document = self._document()
        _publish(document, self.out)
        for one in document["failed"]:
            which = f"{one['recipe']} on {one['base']}, rate {one['rate']:g}, seed {one['seed']}"
            print(brief(f"failed: {which}, code {one['code']}: {one['said']}", 2000), file=sys.stderr)
        if code == EXIT_INTERRUPTED:
            print("Stopped. The same command with this --out resumes; unfinished runs restart.")
        return code

    def _work(self, watcher: "AllRuns") -> int:
        tuning = tuning_runs(self.design)
        failures = self._train(tuning, watcher)
        reported = self._to_report()
        watcher.impossible(number_of_runs(self.design) - len(tuning) - len(reported))
        failures += self._train(reported, watcher)
        return EXIT_FAILED if failures else EXIT_OK

    def _train(self, runs: Sequence[PlannedRun], watcher: "AllRuns") -> int:
        """Train the runs that are not finished; the number of failures."""
        options, existing = self.options, self._existing_runs(runs)
        watcher.there_already(len(existing.rows))
        return len(execute(existing.to_do, self.out, at_once=options.jobs, watcher=watcher, keep_models=options.keep_models))

    def _to_report(self) -> list[PlannedRun]:
        """The reported runs that tuning has decided so far."""
        if not self.design.tunes:
            return reported_runs(self.design, {})
        runs = tuning_runs(self.design)
        rows = self._finished(runs)
        tuned = tune(self.design, rows, {failure.run.key for failure in failures_of(runs, self.out)})
        standing = standings(self.design, rows, tuned)
        if self.design.finalists is not None and not standing:
            return []
        return reported_runs(self.design, best_rates(tuned), advancing_recipes(standing))

    def _finished(self, runs: Sequence[PlannedRun]) -> list[dict[str, Any]]:
        found = (inspect_run(self.out / planned.path, planned, self.code) for planned in runs)
        usable = ((planned.key in self.trained) or self.options.stale == "keep" for planned in runs)
        return [one.row for one, kept in zip(found, usable, strict=True) if one.row is not None and (one.state == "done" or kept)]

    def _finish(self, planned: PlannedRun) -> dict[str, Any] | None:
        """The row of a run that has just finished."""
        self.trained.add(planned.key)
        self.save_partial_results()
        return inspect_run(self.out / planned.path, planned, self.code).row

    def _document(self) -> dict[str, Any]:
        runs = [*tuning_runs(self.design), *self._to_report()]
        rows, failures = self._finished(runs), failures_of(runs, self.out)
        return make_document(
            self.design,
            rows,
            failures,
            missing=max(0, number_of_runs(self.design) - len(rows) - len(failures)),
            threshold=self.threshold,
            settings=_settings(self.design),
            remarks=self.remarks,
            made_by=self.made_by,
        )


def _configurator(files: Sequence[str], rest: Sequence[str], *, save_best: bool) -> Callable[[str], TrainConfig]:
    """Recipe -> configuration under the shared files and flags."""
    underneath = {**UNDERNEATH, "save_best": save_best}
    kind = TrainingKind("tokencredit compare [CONFIG.toml ...] [OPTIONS]", "Compare recipes.", underneath)

    @cache
    def configure(recipe: str) -> TrainConfig:
        return anchored(parse_train([*files, *rest, "--recipe", recipe], kind).config)

    return configure


def _choose_out(out: Path | None) -> Path:
    """A comparison resumes in its own folder; other non-empty folders are refused."""
    if out is not None and (out / JSON_FILE).is_file():
        return out
    return choose_folder(out, recipe="compare", exists="new" if out is None else "fail")


def _settings(design: Design) -> dict[str, Any]:
    """The settings that all recipes share, and those that differ."""
    settings = {arm.label: flat(arm.config.model_dump(mode="json")) for arm in design.arms}
    names = list(dict.fromkeys(name for own in settings.values() for name in own if name not in VARIES))
    absent = object()
    shared = [name for name in names if len({repr(own.get(name, absent)) for own in settings.values()}) == 1]
    return {
        "common": {name: next(iter(settings.values()))[name] for name in shared},
        "by_recipe": {label: {name: own[name] for name in names if name in own and name not in shared} for label, own in settings.items()},
    }
