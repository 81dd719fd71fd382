"""`tokencredit evaluate`: measure a model on a task, with intervals, and judge whether the task suits RL training of the model.

Order of this file: the command, its steps (tasks, gold check, problems, model), the JSON document, the printed tables.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from tokencredit.commands.eval_settings import EvaluateOptions, Setting, is_run, parse_evaluate, stored_layer
from tokencredit.commands.run_folder import check_new_file
from tokencredit.config import as_kwargs
from tokencredit.config.resolve import resolve
from tokencredit.config.task import TaskChoice
from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.models import model_folder
from tokencredit.rollout_io.write import check_out, write_rows
from tokencredit.seeds import derive_seed
from tokencredit.stats import Estimate
from tokencredit.storage.atomic import atomic_write
from tokencredit.storage.run_dir import RunDir
from tokencredit.text import brief, sanitize

if TYPE_CHECKING:
    from tokencredit.analysis.measure import Measured
    from tokencredit.analysis.suitability import Verdict
    from tokencredit.policy.policy import Policy
    from tokencredit.tasks import Problem, Split, Task


def run(arguments: Sequence[str]) -> int:
    model, options, settings = parse_evaluate(arguments)
    folder = model_folder(model)
    if options.json is not None and options.json != "-":
        check_new_file("json", Path(options.json), ending=".json", force=options.force)
    if options.responses is not None:
        check_out(options.responses, force=options.force)
    found, rows = _measured(model, options, settings)
    from tokencredit.analysis.suitability import best_of, judge, ladder_of

    verdicts = [judge(measured, setting.config.task) for measured, setting in zip(found, settings, strict=True)]
    best = best_of(found) if options.vary is not None else None
    document = _as_json(model, folder, options, settings, found, verdicts, best)
    if options.responses is not None:
        write_rows(options.responses, rows, force=options.force)
    if options.json == "-":
        print(json.dumps(document, indent=2))
        return EXIT_OK
    if options.json is not None:
        atomic_write(Path(options.json), json.dumps(document, indent=2) + "\n")
    print_tables(model, settings, found, verdicts, split=options.split, best=best)
    ladder = ladder_of(settings[0].config.task)
    if options.vary is None and verdicts[0].kind != "good" and ladder is not None:
        again = ["--vary", f"task.{ladder.field}={','.join(str(value) for value in ladder.values)}"]
        print(brief(f"Compare difficulties: {shlex.join(['tokencredit', 'evaluate', *arguments, *again])}", 2000))
    for what, path in (("Numbers", options.json), ("Responses", options.responses)):
        if path is not None:
            print(f"{what}: {path}")
    return EXIT_OK


def _measured(model: str, options: EvaluateOptions, settings: Sequence[Setting]) -> tuple[list["Measured"], list[dict[str, Any]]]:
    """Measure each setting; return the measurements and the rows of the rollout file.

    Tasks and problems are built first: they are fast, and their errors appear before torch is imported.
    """
    tasks = _tasks(settings)
    _check_gold(model, options.split, settings, tasks)
    problems = [_problems(options, setting, task) for setting, task in zip(settings, tasks, strict=True)]

    from tokencredit.analysis.measure import measure
    from tokencredit.commands.progress import counting
    from tokencredit.forward.memory import oom_as_guard_error
    from tokencredit.policy.prompting import with_prompting
    from tokencredit.trainer.preflight import check_model_and_task

    bare = _policy(model, settings[0])
    policies = [with_prompting(bare, setting.config, task) for setting, task in zip(settings, tasks, strict=True)]
    for policy, task, chosen, setting in zip(policies, tasks, problems, settings, strict=True):
        check_model_and_task(policy, task, chosen, setting.config)
    found: list[Measured] = []
    rows: list[dict[str, Any]] = []
    with oom_as_guard_error(), counting("evaluating") as show_progress:
        for number, (policy, task, chosen, setting) in enumerate(zip(policies, tasks, problems, settings, strict=True)):

            def report_done(done: int, before: int = number * options.problems) -> None:
                show_progress(before + done, len(settings) * options.problems)

            kept: list[dict[str, Any]] | None = None if options.responses is None else []
            found.append(measure(policy, task, chosen, setting.config, samples=options.samples, notify=report_done, keep=kept))
            # In the rollout file, each setting is a step.
            rows += [row if options.vary is None else {"step": number} | row for row in kept or ()]
    return found, rows


def _tasks(settings: Sequence[Setting]) -> list["Task"]:
    """One task per setting. Settings with equal task fields share one object, so that its gold answers are graded once."""
    from tokencredit.tasks import TASKS

    made: list[tuple[TaskChoice, Task]] = []
    for choice in (setting.config.task for setting in settings):
        known = [task for other, task in made if other == choice]
        made.append((choice, known[0] if known else TASKS[choice.type](**as_kwargs(choice))))
    return [task for _, task in made]


def _check_gold(model: str, split: "Split", settings: Sequence[Setting], tasks: Sequence["Task"]) -> None:
    """Exclude rows whose gold answer the task's own grader rejects; for a run, the rows that the run excluded.

    Only the rows that are evaluated or shown as few-shot examples are checked.
    """
    from tokencredit.tasks import GoldChecking
    from tokencredit.tasks.protocol import GoldCheckingBySide
    from tokencredit.trainer.preflight import check_gold

    shown = any(setting.config.prompt.few_shot for setting in settings)
    for setting, task in {id(task): (setting, task) for setting, task in zip(settings, tasks, strict=True)}.values():
        if is_run(model) and resolve([stored_layer(model)]).task == setting.config.task:
            report = check_gold(task, RunDir(Path(model)))
        elif isinstance(task, GoldCheckingBySide) and (split == "train" or not shown):
            report = task.check_gold_of(split)
        else:
            report = task.check_gold() if isinstance(task, GoldChecking) else None
        if report is not None and report.failed:
            line, why = report.failed[0]
            excluded = f"{len(report.failed)} of {report.checked} problems are excluded, because their gold answer is not graded right"
            print(brief(f"{excluded}, such as line {line} of {why}"), file=sys.stderr)


def _problems(options: EvaluateOptions, setting: Setting, task: "Task") -> list["Problem"]:
    """The problems of the split. The held-out problems are those that a training run with this seed is evaluated on."""
    purpose = "held-out" if options.split == "held-out" else "evaluate-train"
    try:
        return task.problems(options.problems, split=options.split, seed=derive_seed(setting.config.seed, purpose))
    except ConfigError as problem:
        # The message of a task names the field of a run; add the flag of this command.
        raise ConfigError(f"{problem} (here: --problems {options.problems})") from None


def _policy(model: str, setting: Setting) -> "Policy":
    from tokencredit.policy.policy import choose_device, load_policy, set_threads
    from tokencredit.rollout.sampler import with_sampler

    config = setting.config
    policy = load_policy(
        model, device=choose_device(config.device), dtype=config.dtype, weights=config.weights, trust_remote_code=config.trust_remote_code
    )
    set_threads(config.threads, policy.model)
    return with_sampler(policy, config.sampler, dtype=config.dtype, memory=config.vllm_memory)


def _as_json(
    model: str,
    folder: Path,
    options: EvaluateOptions,
    settings: Sequence[Setting],
    found: Sequence["Measured"],
    verdicts: Sequence["Verdict"],
    best: int | None,
) -> dict[str, Any]:
    results = [
        {"setting": setting.name or None, **measured.to_json(), "verdict": verdict.kind, "words": list(verdict.lines)}
        for setting, measured, verdict in zip(settings, found, verdicts, strict=True)
    ]
    asked = options.config.model_dump(mode="json")
    document = {"model": model, "folder": folder.name, "split": options.split, "vary": options.vary, "asked": asked, "results": results}
    return document if options.vary is None else document | {"best": None if best is None else settings[best].name}


def print_tables(
    model: str, settings: Sequence[Setting], found: Sequence["Measured"], verdicts: Sequence["Verdict"], *, split: str, best: int | None
) -> None:
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=160)
    one = len(found) == 1 and not settings[0].name
    about = f"{model} on {settings[0].config.task.type}: {found[0].problems} {split} problems, {found[0].samples} samples of each"
    console.print(sanitize(about), markup=False, soft_wrap=True)
    if one:
        _print_table(console, ("", "value", "95 % interval"), _rows(found[0]))
    else:
        rows = [_line(*each) for each in zip(settings, found, verdicts, strict=True)]
        _print_table(console, ("", "greedy", "pass@1", f"pass@{found[0].samples}", "mixed groups", "verdict"), rows)
    if one:
        _print_sentences(console, verdicts[0].lines)
        return
    if best is None:
        _print_sentences(console, ["no setting has groups with different scores, so comparing responses teaches nothing"])
        return
    first, *more = verdicts[best].lines
    _print_sentences(console, [f"the most informative setting is {settings[best].name}: {first}", *more])


def _print_table(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=box.HEAVY_HEAD if console.is_terminal else None, pad_edge=console.is_terminal)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("", "verdict") else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_sentences(console: Console, words: Sequence[str]) -> None:
    for line in words:
        console.print(f"{brief(line[:1].upper() + line[1:])}.", markup=False, soft_wrap=True)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _with_interval(name: str, estimate: Estimate) -> tuple[str, str, str]:
    return name, _percent(estimate.value), f"{_percent(estimate.low)} to {_percent(estimate.high)}"


def _line(setting: Setting, measured: "Measured", verdict: "Verdict") -> tuple[str, ...]:
    shown = (measured.greedy, measured.pass_at[1], measured.pass_at[measured.samples], measured.mixed)
    cells = [f"{_percent(one.value)} ({100 * one.low:.0f} to {100 * one.high:.0f})" for one in shown]
    return sanitize(setting.name), *cells, verdict.kind


def _rows(measured: "Measured") -> list[tuple[str, ...]]:
    rows = [_with_interval("greedy", measured.greedy)]
    rows += [_with_interval(f"pass@{k}{' (one sample)' if k == 1 else ''}", estimate) for k, estimate in measured.pass_at.items()]
    rows.append(_with_interval(f"mixed groups of {measured.group_size}", measured.mixed))
    plain = {
        "tokens of a response": f"{measured.length:.1f}",
        "cut at the limit": _percent(measured.cut),
        "entropy of a token": f"{measured.entropy:.3f}",
        "ended in the required format": _percent(measured.parts["format"]),
        "not graded": _percent(measured.ungraded),
        "seconds": f"{measured.seconds:.1f}",
        "tokens per second": f"{measured.tokens / max(measured.sampling_seconds, 1e-9):,.0f}",
    }
    return [*rows, *((name, value, "") for name, value in plain.items())]
