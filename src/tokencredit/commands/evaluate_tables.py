"""What a person sees of an evaluation: tables in a terminal, aligned text elsewhere, and a verdict in words."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tokencredit.analysis.measure import Measured
from tokencredit.analysis.suitability import Verdict
from tokencredit.commands.eval_settings import Setting
from tokencredit.stats import Estimate
from tokencredit.text import brief, visible


def print_found(
    model: str, settings: Sequence[Setting], found: Sequence[Measured], verdicts: Sequence[Verdict], *, split: str, best: int | None
) -> None:
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=160)
    one = len(found) == 1 and not settings[0].name
    about = f"{model} on {settings[0].config.task.type}: {found[0].problems} {split} problems, {found[0].samples} samples of each"
    console.print(visible(about), markup=False, soft_wrap=True)
    if one:
        _print_table(console, ("", "value", "95 % interval"), _rows(found[0]))
    else:
        rows = [_line(*each) for each in zip(settings, found, verdicts, strict=True)]
        _print_table(console, ("", "greedy", "pass@1", f"pass@{found[0].samples}", "mixed groups", "verdict"), rows)
    if one:
        _say(console, verdicts[0].words)
        return
    if best is None:
        _say(console, ["no setting has groups whose scores differ: nothing could be learned from comparing responses"])
        return
    first, *more = verdicts[best].words
    _say(console, [f"most is to be learned at {settings[best].name}: {first}", *more])


def _print_table(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=box.HEAVY_HEAD if console.is_terminal else None, pad_edge=console.is_terminal)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("", "verdict") else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _say(console: Console, words: Sequence[str]) -> None:
    for line in words:
        console.print(f"{brief(line[:1].upper() + line[1:])}.", markup=False, soft_wrap=True)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _with_interval(name: str, estimate: Estimate) -> tuple[str, str, str]:
    return name, _percent(estimate.value), f"{_percent(estimate.low)} to {_percent(estimate.high)}"


def _line(setting: Setting, measured: Measured, verdict: Verdict) -> tuple[str, ...]:
    shown = (measured.greedy, measured.pass_at[1], measured.pass_at[measured.samples], measured.mixed)
    cells = [f"{_percent(one.value)} ({100 * one.low:.0f} to {100 * one.high:.0f})" for one in shown]
    return visible(setting.name), *cells, verdict.kind


def _rows(measured: Measured) -> list[tuple[str, ...]]:
    rows = [_with_interval("greedy", measured.greedy)]
    rows += [_with_interval(f"pass@{k}{' (one sample)' if k == 1 else ''}", estimate) for k, estimate in measured.pass_at.items()]
    rows.append(_with_interval(f"mixed groups of {measured.group_size}", measured.mixed))
    plain = {
        "tokens of a response": f"{measured.length:.1f}",
        "cut at the limit": _percent(measured.cut),
        "entropy of a token": f"{measured.entropy:.3f}",
        "ended in the asked format": _percent(measured.parts["format"]),
        "not graded": _percent(measured.ungraded),
        "seconds": f"{measured.seconds:.1f}",
        "tokens per second": f"{measured.tokens / max(measured.sampling_seconds, 1e-9):,.0f}",
    }
    return [*rows, *((name, value, "") for name, value in plain.items())]
