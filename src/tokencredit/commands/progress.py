"""The printed progress and summary of a run: a live progress bar in a terminal, plain lines elsewhere, one line per evaluation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tokencredit.config.train import TrainConfig
from tokencredit.report.terminal import credit_legend, credit_line
from tokencredit.text import brief, sanitize

if TYPE_CHECKING:
    from tokencredit.analysis.showcase import ShownResponse
    from tokencredit.policy.policy import Policy
    from tokencredit.trainer.evaluate import Accuracy


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


class RunProgress:
    """A Callback that prints progress. Between evaluations the line shows the last held-out accuracy."""

    def __init__(self, config: TrainConfig, folder: Path, console: Console, bar: Progress | None) -> None:
        self.config, self.console, self.bar = config, console, bar
        self.held_out = ""
        self.first_step = 0
        self.task_id = None if bar is None else bar.add_task("", total=config.steps, line="evaluating the base model")
        self.seconds = 0.0
        self.tokens = 0
        self.printed_ungraded = False
        if bar is None:
            what = f"recipe {config.recipe}" if config.source == "policy" else "demonstrations"
            settings = f"{what}, task {config.task.type}, model {config.model}, {config.steps} steps"
            console.print(sanitize(f"training: {settings}, run folder {folder}"), markup=False)

    def on_train_begin(self, policy: "Policy", before: "Accuracy", step: int) -> None:
        self.first_step = step
        if self.bar is not None and self.task_id is not None:
            self.bar.update(self.task_id, completed=step)
        parameters = sum(parameter.numel() for parameter in policy.model.parameters())
        self.held_out = "" if step else f"{_percent(before.sampled)} (step 0)"
        self.console.print(
            f"{sanitize(self.config.model)}: {parameters / 1e6:.2f} M parameters on {policy.device}. "
            f"Held-out accuracy before training: greedy {_percent(before.greedy)}, sampled {_percent(before.sampled)}, "
            f"pass@{before.k} {_percent(before.pass_at_k)}; mixed groups (right and wrong responses) {_percent(before.mixed_groups)}.",
            markup=False,
        )

    def on_step_end(self, row: dict[str, Any], seconds: float) -> None:
        self.seconds += seconds
        self.tokens += row.get("tokens", 0)
        evaluated = "held_out/sampled" in row
        if evaluated:
            self.held_out = f"{_percent(row['held_out/sampled'])} (step {row['step']})"
        line = (
            f"reward {row.get('reward', float('nan')):.2f}  held-out {self.held_out:<15}  "
            f"entropy {row.get('entropy', float('nan')):.3f}  {self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s"
        )
        if ungraded := row.get("ungraded"):
            line += f"  not graded {ungraded}"
        if self.bar is not None and self.task_id is not None:
            self.bar.update(self.task_id, completed=row["step"], line=line)
        if evaluated or (self.bar is None and row["step"] in (1, self.config.steps)):
            left = self.seconds / (row["step"] - self.first_step) * (self.config.steps - row["step"])
            ending = "" if self.bar is not None else f"  {left:.0f} s left"
            self.console.print(f"step {row['step']:>4}  {line}{ending}", highlight=False)

    def on_event(self, step: int, kind: str, message: str) -> None:
        """Print an event. Ungraded responses may occur at every step: the event is printed once, then the progress line counts them."""
        if kind == "ungraded" and self.printed_ungraded:
            return
        self.printed_ungraded = self.printed_ungraded or kind == "ungraded"
        self.console.print(f"step {step:>4}  {kind}: {brief(message)}", style="yellow", highlight=False, markup=False)


@contextmanager
def make_progress(config: TrainConfig, folder: Path) -> Iterator[RunProgress]:
    """The progress display of a run: a bar if standard output is a terminal, else lines that are not wrapped to 80 characters."""
    console = Console() if Console().is_terminal else Console(width=200)
    if not console.is_terminal:
        yield RunProgress(config, folder, console, None)
        return
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[line]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        yield RunProgress(config, folder, console, bar)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, in a terminal only. Yields a function that takes the finished and the total count."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn(what), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_summary(result: dict[str, Any], folder: Path, shown: Sequence["ShownResponse"]) -> None:
    """Accuracy before and after, cost, and a few held-out responses coloured by credit."""
    console = Console()
    before, after = result["before"], result["after"]
    table = Table(title=f"held-out accuracy, {before['problems']} problems", title_justify="left")
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, label in (("greedy", "greedy"), ("sampled", "sampled (pass@1)"), ("pass_at_k", f"pass@{before['k']}")):
        table.add_row(label, _percent(before[name]), _percent(after[name]))
    table.add_row("response length (tokens)", f"{before['length']:.1f}", f"{after['length']:.1f}")
    console.print(table)
    seconds = result["seconds"]
    total = sum(seconds.values())
    longest = sorted(seconds.items(), key=lambda item: -item[1])[:3]
    stages = ", ".join(f"{name} {value:.0f} s" for name, value in longest)
    console.print(
        f"{result['rollouts_used']:,} rollouts in {total:.0f} s ({stages}). Run folder: {sanitize(str(folder))}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    if not shown:
        console.print("No held-out problem has both a right and a wrong response now, so no example is shown.")
        return
    console.print("\nHeld-out responses of the trained policy, coloured by the credit of each token:")
    for response in shown:
        verdict = "right" if response.score >= 1 else "wrong"
        console.print(credit_line(response.prompt, response.pieces, response.credit, verdict), soft_wrap=True, highlight=False)
    console.print(credit_legend(), soft_wrap=True, highlight=False)
