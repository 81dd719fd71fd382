"""`tokencredit bench credit MODEL ... [CONFIG.toml ...]`: compares token credit with the measured advantage of tokens."""

import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic import ValidationError

from tokencredit.commands.eval_settings import UNUSED_TRAINING, EvalConfig, is_run, refuse_custom_task, stored_layer
from tokencredit.commands.flags import TABLES, chosen_types
from tokencredit.commands.run_folder import check_new_file
from tokencredit.config.messages import as_config_error
from tokencredit.config.resolve import read_toml, resolve
from tokencredit.config.syntax import with_task_fields, with_task_flags
from tokencredit.config.train import CHOICES, TrainConfig
from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.lab.credit.recipes import QUICK, USUAL, CreditOrder, Field, check_order, find_methods
from tokencredit.models import model_folder
from tokencredit.storage.atomic import atomic_write

USAGE = "tokencredit bench credit MODEL ... [CONFIG.toml ...] [OPTIONS]"
DEFAULT_MODELS = ("steps-shift", "steps-sharpen")
"""The two regimes of the embedded task: conclusions differ between them."""


@dataclass(frozen=True)
class CreditOptions:
    """Compare the token credit of recipes with the true advantage of tokens, at a fixed policy.

    MODEL is a shipped base, smollm2, a folder, a run (its best checkpoint with its prompts) or an id on the hub; several give a
    table each, and none the two bases of the embedded task, steps-shift and steps-sharpen.

    Truth: the value of every prefix of some rollouts by sampled continuations, hence the true advantage A* of every token. Each recipe's
    credit is compared with it, and each recipe's gradient on small batches with the gradient of many rollouts.
    """

    evaluation: Annotated[EvalConfig, tyro.conf.arg(name="")]
    recipes: str | None = None
    """Recipes, with settings after a colon or without (delta:credit.scope=group), and config files, separated by commas; grpo and a
    random control are always included. Default: all."""
    prompts: int = USUAL.prompts
    """Prompts of the batch whose A* is measured."""
    continuations: int = USUAL.continuations
    """Sampled continuations per prefix."""
    decisive: float = USUAL.decisive
    """Tokens with |A*| above this are decisive."""
    reference: int = USUAL.reference
    """Rollouts of the reference gradient; 0 leaves gradients out."""
    batches: int = USUAL.batches
    """Small batches whose gradients are compared."""
    batch_prompts: int = USUAL.batch_prompts
    """Prompts of a small batch."""
    extra: float = USUAL.extra
    """The most extra rollouts per rollout that a recipe may sample in the small batches."""
    resamples: int = USUAL.resamples
    """Bootstrap resamples of prompts for intervals."""
    examples: int = USUAL.examples
    """Responses kept of each recipe, from the one whose credit disagrees most with A* to a typical one; 0 keeps none."""
    show_examples: bool = False
    """Print the worst response of each recipe in colour: A* above, the recipe's credit below."""
    max_tokens: int = 8192
    """Budget of a backward pass: rows x longest row, prompt included."""
    quick: bool = False
    """A smoke test: small values for all sizes that are not set. Draw no conclusions from it."""
    json: Path | None = None
    """Write every number here, after every model."""
    html: Path | None = None
    """Write a page that holds everything here."""
    force: bool = False
    """Overwrite these files."""


def run(arguments: Sequence[str]) -> int:
    models, options, configs = parse_credit(arguments)
    for name, ending in (("json", ".json"), ("html", ".html")):
        if (path := getattr(options, name)) is not None:
            check_new_file(name, path, ending=ending, force=options.force)
    if options.show_examples and not options.examples:
        raise ConfigError("show-examples is given but examples is 0; give at least 1")
    order, field = _order(options), find_methods(options.recipes)
    for config in configs:
        check_order(order, config.sampling.group_size)
    for model in models:
        model_folder(model)
    return _measure(options, order, field, configs)


def parse_credit(arguments: Sequence[str]) -> tuple[list[str], CreditOptions, list[TrainConfig]]:
    """Models, options, and the configuration of each model. Errors exit with 2 or raise ConfigError."""
    count = next((index for index, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    words, flags = list(arguments[:count]), with_task_flags(arguments[count:])
    files, models = [word for word in words if word.endswith(".toml")], [word for word in words if not word.endswith(".toml")]
    models = models or list(DEFAULT_MODELS)
    if twice := next((model for model in models if models.count(model) > 1), None):
        raise ConfigError(f"model {twice!r} is named more than once; name it once")
    layers = [read_toml(Path(name)) for name in files]
    parsed = [_parse_one(model, layers, flags) for model in models]
    return models, parsed[0][0], [config for _, config in parsed]


def _parse_one(model: str, files: Sequence[Mapping[str, Any]], flags: Sequence[str]) -> tuple[CreditOptions, TrainConfig]:
    """A run's stored settings, overridden by files and flags. Its stages do not matter: the benchmark runs those of every recipe."""
    layers: list[Mapping[str, Any]] = [*files, chosen_types(flags)]
    tasks = [with_task_fields(layer).get("task") for layer in layers]
    task = next((one["type"] for one in reversed(tasks) if isinstance(one, Mapping) and isinstance(one.get("type"), str)), None)
    if is_run(model):
        layers.insert(0, stored_layer(model, task))
    whole = resolve([{"recipe": "grpo"}, *layers, UNUSED_TRAINING])
    if task is None:
        refuse_custom_task(model, whole, instead="name it with --task own:FILE:NAME to run it")
    found = {name: getattr(whole, name) for name in EvalConfig.model_fields}
    # The benchmark always samples siblings.
    found["sampling"] = whole.sampling.model_copy(update={"group_size": whole.sampling.siblings})
    default = CreditOptions(evaluation=EvalConfig.model_construct(**found))
    try:
        options = tyro.cli(
            tyro.conf.AvoidSubcommands[CreditOptions],
            default=default,
            args=list(flags),
            registry=TABLES,
            prog=USAGE.removesuffix(" [OPTIONS]"),
            description=f"{inspect.getdoc(CreditOptions)}\n\n--task.type: {', '.join(CHOICES['task'])}",
        )
    except ValidationError as problem:
        raise as_config_error(problem) from None
    if options.evaluation.sampling.prompts != whole.sampling.prompts:
        raise ConfigError(f"sampling.prompts is {options.evaluation.sampling.prompts}, which bench credit does not read; see --prompts")
    if options.max_tokens <= options.evaluation.sampling.max_new_tokens:
        raise ConfigError(
            f"max-tokens is {options.max_tokens} but a response may take {options.evaluation.sampling.max_new_tokens} plus the prompt; "
            "give a larger budget"
        )
    plain = resolve([{"recipe": "grpo"}, UNUSED_TRAINING])
    budget = plain.optimizer.model_copy(update={"max_tokens": options.max_tokens})
    evaluation = {name: getattr(options.evaluation, name) for name in EvalConfig.model_fields}
    return options, plain.model_copy(update=evaluation | {"model": model, "optimizer": budget})


def _order(options: CreditOptions) -> CreditOrder:
    """The sizes; with --quick, sizes left at their default become small."""
    given = {field.name: getattr(options, field.name) for field in fields(options) if field.name in CreditOrder._fields}
    return CreditOrder(
        **{name: getattr(QUICK, name) if options.quick and value == getattr(USUAL, name) else value for name, value in given.items()}
    )


def _measure(options: CreditOptions, order: CreditOrder, field: Field, configs: Sequence[TrainConfig]) -> int:
    """Run the benchmark; torch is first imported here."""
    from tokencredit.forward.memory import oom_as_guard_error
    from tokencredit.lab.credit.run import run_credit

    def finished(result: Mapping[str, Any]) -> None:
        if options.json is not None:
            atomic_write(options.json, json.dumps(result, indent=2) + "\n")

    with oom_as_guard_error(), _progress() as tell:
        result = run_credit(configs, order, field, notify=tell, finished=finished)
    _show(result, examples=options.show_examples)
    if options.html is not None:
        from tokencredit.lab.pages.credit_bench import write_credit_page

        write_credit_page(result, options.html)
    for what, path in (("Numbers", options.json), ("Page", options.html)):
        if path is not None:
            print(f"{what}: {path}")
    if options.quick:
        print("These are --quick numbers: too noisy for conclusions.")
    return EXIT_OK


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar in a terminal; elsewhere one line on stderr per stage."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        said: list[tuple[str, str]] = []

        def tell(model: str, what: str, done: int, total: int) -> None:
            if said[-1:] != [(model, what)]:
                said.append((model, what))
                print(f"{model}: {what}", file=sys.stderr, flush=True)

        yield tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task("", total=None)
        yield lambda model, what, done, total: bar.update(shown, description=f"{model}: {what}", completed=done, total=total)


def _show(result: Mapping[str, Any], *, examples: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from tokencredit.lab.credit.agreement import worst_examples
    from tokencredit.lab.credit.table import notes, tables

    console = Console() if Console().is_terminal else Console(width=200)
    for record in result["checkpoints"]:
        for shown in tables(record):
            table = Table(title=shown.title, title_justify="left")
            for number, column in enumerate(shown.columns):
                table.add_column(column, justify="right" if number else "left", overflow="fold", ratio=None)
            for row in shown.rows:
                table.add_row(*row)
            console.print(table)
            for note in shown.notes:
                console.print(note, highlight=False, markup=False)
            console.print()
        for line in worst_examples(record) if examples else ():
            console.print(line, soft_wrap=True)
        for note in notes(record):
            console.print(note, highlight=False, markup=False)
        console.print()
