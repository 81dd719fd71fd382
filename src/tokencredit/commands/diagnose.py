"""`tokencredit diagnose`: measure what an update did to each token, for a step of a run or for another trainer's rollouts."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from pydantic import ValidationError

from tokencredit.commands.credit import UNTIL_READ, config_layers
from tokencredit.commands.run_folder import choose_folder
from tokencredit.config.messages import as_config_error
from tokencredit.config.resolve import read_toml, resolve, to_toml
from tokencredit.config.train import Diagnose, TrainConfig
from tokencredit.diagnose import FINDINGS
from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.models import model_folder
from tokencredit.text import sanitize, suggest

if TYPE_CHECKING:
    from tokencredit.storage.run_dir import RunDir


@dataclass(frozen=True)
class DiagnoseOptions:
    """Measure what an update did to each token: flips, first-order effect, coupling, cancellation, learning tax, drift, entropy, masses.

    With a run folder: repeat one step of the run from the nearest checkpoint and add the findings to the folder.
    With --model and --rollouts: take one training step on the rollouts; the model folder stays unchanged.
    """

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """A run folder."""
    step: int | None = None
    """Training step of the run, counted from 1 (default: the last with tokens), or of the rollout file, if it holds several."""
    only: str | None = None
    """Findings to compute, separated by commas, such as flips,coupling. Default: all."""
    model: str | None = None
    """Model that wrote the rollouts: a shipped base or a folder."""
    rollouts: Path | None = None
    """A rollout file, TRL's completions_*.parquet, or verl's {step}.jsonl."""
    recipe: str | None = None
    """For rollouts: recipe. Default: that of the config files, else delta."""
    config: tuple[Path, ...] = ()
    """For rollouts: config files (.toml); later files override earlier ones."""
    learning_rate: float | None = None
    """For rollouts: learning rate of the step. Default: that of the config files, else 1e-6."""
    optimizer_steps: int | None = None
    """For rollouts: number of optimizer steps per batch. Default: that of the config files, else 4."""
    groups: int | None = None
    """Groups whose change of log-prob is predicted; 0: all. Default: that of the run, else 4."""
    value_budget: int | None = None
    """Maximum number of continuations to sample for token values. Needs a run, whose task grades them."""
    drift_budget: int | None = None
    """Maximum number of fresh responses to sample to measure drift."""
    out: Path | None = None
    """Output folder. Default: the run folder; for rollouts diagnoses/<number>-<recipe>."""
    force: bool = False
    """Replace existing findings."""


def chosen_findings(only: str | None) -> tuple[str, ...]:
    if only is None:
        return FINDINGS
    names = tuple(name.strip() for name in only.split(","))
    for name in names:
        if name not in FINDINGS:
            raise ConfigError(f"only names {name!r}, which is not a finding; {suggest(name, FINDINGS)}")
    return names


def _with_budgets(config: TrainConfig, options: DiagnoseOptions) -> TrainConfig:
    given = {name: getattr(options, name) for name in ("groups", "value_budget", "drift_budget") if getattr(options, name) is not None}
    try:
        return config.model_copy(update={"diagnose": Diagnose.model_validate(config.diagnose.model_dump() | given)})
    except ValidationError as problem:
        raise as_config_error(problem) from None


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(DiagnoseOptions, args=list(arguments), prog="tokencredit diagnose")
    only = chosen_findings(options.only)
    if options.run is not None:
        given = [
            f"--{name}" for name in ("model", "rollouts", "recipe", "config", "learning_rate", "optimizer_steps") if getattr(options, name)
        ]
        if given:
            raise ConfigError(f"run {options.run} has its own model, rollouts and settings; leave out {', '.join(given).replace('_', '-')}")
        return _of_run(options, options.run, only)
    if options.model is None or options.rollouts is None:
        raise ConfigError("nothing to diagnose: give a run folder, or --model DIR and --rollouts FILE")
    return _of_rollouts(options, options.model, options.rollouts, only)


def _of_run(options: DiagnoseOptions, path: Path, only: Sequence[str]) -> int:
    if not (path / "config.toml").is_file():
        raise ConfigError(f"run {path} is not a run folder: it has no config.toml")
    config = _with_budgets(resolve([read_toml(path / "config.toml")]), options)
    if config.engine != "local":
        raise ConfigError(
            f"run {path} was trained by {config.engine}, whose steps cannot be repeated here; "
            "use --model with one of its checkpoints and --rollouts with a file"
        )
    model_folder(config.model)
    step = _last_step(path) if options.step is None else options.step
    _check_budget(only, options.only, config)
    elsewhere = options.out is not None and options.out.resolve() != path.resolve()
    out = options.out if elsewhere and options.out is not None else path
    _check_new(out, step, own=not elsewhere, force=options.force)

    from tokencredit.analysis.replay import recreate
    from tokencredit.commands.progress import counting
    from tokencredit.pipeline.metrics import mean_entropy
    from tokencredit.storage.run_dir import RunDir
    from tokencredit.trainer.findings import diagnose_step
    from tokencredit.trainer.recorder import entropy_history
    from tokencredit.trainer.token_table import label_tokens, token_columns

    source = RunDir(path)
    with counting("training again up to the step") as show_progress:
        recreated = recreate(source, config, step, show_progress)
    trainer, batch = recreated.trainer, recreated.batch
    collected, credited, plan = batch.assigned()
    if recreated.same_plan is False and not elsewhere:
        raise ConfigError(
            f"the repeated step {step} has another plan than the run recorded (other hardware or versions?); "
            "the files of the run stay unchanged; write the findings to another folder with --out"
        )
    labels = label_tokens(trainer.policy, trainer.task, collected.problems, credited.rollouts)
    history = [*entropy_history(source, before=step), (step, mean_entropy(credited))]
    found = diagnose_step(batch, labels, trainer.task, config, step=step, history=history, only=only)
    target = _opened(out, config, f"step {step} of {path}") if elsewhere else source
    if elsewhere and step not in {row["step"] for row in target.read("plans.jsonl")}:
        target.append_plan(step, plan)
    if step not in {number for number, _ in target.step_files("tokens")}:
        target.write_tokens(step, token_columns(step, credited, plan, labels, collected.problems))
    target.write_findings(step, found.to_json(step), found.columns)
    start = "the base model" if recreated.start.checkpoint is None else f"checkpoint {recreated.start.checkpoint.name}"
    comparison = {
        True: "its plan is the recorded plan",
        False: "its plan DIFFERS from the recorded plan",
        None: "the run recorded no plan",
    }
    print(f"Step {step} repeated from {start}; {comparison[recreated.same_plan]}.\n")
    _print_findings(found.to_json(step), out)
    return EXIT_OK


def _of_rollouts(options: DiagnoseOptions, model: str, rollouts: Path, only: Sequence[str]) -> int:
    for name in ("value_budget", "drift_budget"):
        if getattr(options, name):
            raise ConfigError(f"{name.replace('_', '-')} samples responses that a task must grade; rollouts from a file have no task")
    named = {"learning_rate": options.learning_rate, "steps_per_batch": options.optimizer_steps}
    given = {"optimizer": {name: value for name, value in named.items() if value is not None}}
    layers = [{"optimizer": {"learning_rate": 1e-6}}, *config_layers(options.config, recipe=options.recipe, model=model), given]
    draft = resolve([*layers, UNTIL_READ])
    model_folder(draft.model)
    if "value" in only and options.only is not None:
        raise ConfigError("only names 'value', which samples responses that a task must grade; rollouts from a file have no task")
    out = choose_folder(options.out, recipe=draft.recipe, exists="fail", parent="diagnoses")

    from tokencredit.analysis.offline import offline_config, offline_notes, stored_labels, train_once
    from tokencredit.pipeline.metrics import mean_entropy
    from tokencredit.policy.policy import choose_device, load_policy, set_threads
    from tokencredit.rollout_io.read import read_rollouts
    from tokencredit.trainer.findings import diagnose_step
    from tokencredit.trainer.token_table import token_columns

    policy = load_policy(draft.model, device=choose_device(draft.device), dtype=draft.dtype)
    set_threads(draft.threads, policy.model)
    stored = read_rollouts(rollouts, policy, step=options.step)
    config = _with_budgets(offline_config(stored, layers), options)
    step = stored.step or 1
    batch = train_once(policy, stored, config)
    collected, credited, plan = batch.assigned()
    labels = stored_labels(policy, stored)
    found = diagnose_step(batch, labels, None, config, step=step, history=[(step, mean_entropy(credited))], only=only)
    target = _opened(out, config, f"rollouts {rollouts}")
    target.append_plan(step, plan)
    target.write_tokens(step, token_columns(step, credited, plan, labels, collected.problems))
    target.write_findings(step, found.to_json(step), found.columns)
    for note in (*stored.notes, *offline_notes(config)):
        print(sanitize(note))
    print(
        f"Took one training step: recipe {config.recipe}, {len(plan.steps)} optimizer steps ({config.batching.type}), "
        f"new AdamW state, learning rate {config.optimizer.learning_rate:g}. Findings about splitting describe this plan.\n"
    )
    _print_findings(found.to_json(step), out)
    return EXIT_OK


def _opened(out: Path, config: TrainConfig, subject: str) -> "RunDir":
    """The folder of a diagnosis; it may already hold findings of other steps."""
    from tokencredit.storage.run_dir import RunDir

    folder = RunDir(out)
    if not (out / "diagnosis.json").is_file():
        folder.create(to_toml(config))
        folder.write_json("diagnosis.json", {"subject": subject, "command": f"tokencredit {shlex.join(sys.argv[1:])}"})
    return folder


def _check_budget(only: Sequence[str], given: str | None, config: TrainConfig) -> None:
    if given is not None and "value" in only and not config.diagnose.value_budget:
        raise ConfigError("only names 'value', which samples continuations; set their number with --value-budget")


def _last_step(path: Path) -> int:
    from tokencredit.storage.run_dir import RunDir

    steps = [step for step, _ in RunDir(path).step_files("tokens")]
    if not steps:
        raise ConfigError(f"run {path} has no token files; name a training step with --step")
    return max(steps)


def _check_new(out: Path, step: int, *, own: bool, force: bool) -> None:
    if not own and out.exists() and any(out.iterdir()) and not (out / "diagnosis.json").is_file():
        raise ConfigError(f"out {out} holds something that is not a diagnosis; name another folder")
    file = out / "findings" / f"step-{step:06}.json"
    if file.exists() and not force:
        raise ConfigError(f"{file} already exists; replace it with --force, or write to another folder with --out")


def _print_findings(found: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console() if Console().is_terminal else Console(width=120)
    for finding in found["findings"]:
        # As Text: a token class in a rollout file may contain what rich would read as markup.
        console.print(Text.assemble((finding["name"], "bold"), f"  {sanitize(finding['note'])}\n"))
    sampled = f" {found['rollouts_used']:,} extra rollouts were sampled." if found["rollouts_used"] else ""
    console.print(
        f"Findings of step {found['step']} are in {out}/findings.{sampled} View them with: tokencredit report {out}", highlight=False
    )
