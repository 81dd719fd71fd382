"""Coloured tokens in a terminal: the token view of `tokencredit show`, and single responses coloured by credit.

Blue is positive, orange is negative; a stronger colour is a larger number.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from tokencredit.errors import ConfigError
from tokencredit.report.run_reader import Run
from tokencredit.report.token_view import Response, StepTokens, read_step
from tokencredit.text import sanitize


class Colouring(NamedTuple):
    columns: tuple[str, ...]
    """Column names; the first recorded one is used."""
    middle: float
    """The value without colour."""
    label: str


COLOURINGS = {
    "credit": Colouring(("credit",), 0.0, "credit"),
    "coefficient": Colouring(("coefficient",), 1.0, "coefficient, 1 is neutral"),
    "change": Colouring(("change_step", "change_first"), 0.0, "measured change of log-prob"),
    "predicted": Colouring(("predicted_step", "predicted_first"), 0.0, "predicted change of log-prob"),
    "entropy": Colouring(("entropy",), 0.0, "entropy before the update"),
}


def choose_step(run: Run, step: int | None) -> StepTokens:
    """The tokens of `step`; default: the last step with tokens."""
    if not run.token_steps:
        raise ConfigError(f"run {run.folder} has no token files; train with tokens_every above 0")
    if step is not None and step not in run.token_steps:
        raise ConfigError(f"step {step} has no tokens; steps with tokens: {', '.join(map(str, run.token_steps))}")
    return read_step(run, run.token_steps[-1] if step is None else step)


def choose_prompt(tokens: StepTokens, prompt: int | None, by: str) -> int:
    """`prompt`; default: the first prompt with values of `by` and with right and wrong responses, else the first with values."""
    groups = list(tokens.by_group)
    if not groups:
        raise ConfigError(f"step {tokens.step} holds no tokens")
    if prompt is not None and prompt not in tokens.by_group:
        raise ConfigError(f"prompt {prompt} is not at step {tokens.step}; prompts there: {_ranges(sorted(groups))}")
    if prompt is not None:
        return prompt
    having = _having(tokens, values_of(tokens, by))
    mixed = [group for group in having if {"right", "wrong"} <= {sibling.verdict for sibling in tokens.by_group[group]}]
    return next(iter(mixed), having[0])


def _having(tokens: StepTokens, values: Sequence[float | None]) -> list[int]:
    """Prompts with a value for at least one token."""
    return [
        group
        for group, siblings in tokens.by_group.items()
        if any(value is not None for sibling in siblings for value in values[sibling.start : sibling.stop])
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3, 7`."""
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    return ", ".join(str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True))


def values_of(tokens: StepTokens, by: str) -> list[float | None]:
    """One number per token, relative to the neutral value."""
    colouring = COLOURINGS[by]
    for name in colouring.columns:
        values = tokens.values(name)
        if any(value is not None for value in values):
            return [None if value is None else value - colouring.middle for value in values]
    available = f"recorded: {', '.join(recorded(tokens)) or 'nothing'}"
    remedy = "; tokencredit diagnose measures it" if by in ("change", "predicted") else ""
    raise ConfigError(f"by {by!r} was not recorded at step {tokens.step}; {available}{remedy}")


def recorded(tokens: StepTokens) -> list[str]:
    """The values of `by` for which the step has numbers."""
    return [
        by for by, colouring in COLOURINGS.items() if any(value is not None for name in colouring.columns for value in tokens.values(name))
    ]


def token_view(tokens: StepTokens, group: int, by: str) -> list[Text | Table]:
    """Title, responses and legend of one prompt. The strongest colour is the largest number of the prompt."""
    values = values_of(tokens, by)
    siblings = tokens.by_group[group]
    sizes = [abs(value) for sibling in siblings for value in values[sibling.start : sibling.stop] if value is not None]
    largest = max(sizes, default=0.0)
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column()
    lines.add_column(no_wrap=True, justify="right")
    for sibling in siblings:
        lines.add_row(_verdict(sibling), _line(tokens, sibling, values, largest), Text(_advantage(tokens, sibling), style="dim"))
    title = Text.assemble((f"step {tokens.step}, prompt {group}  ", "bold"), sanitize(tokens.prompt(group)))
    if not sizes:
        having = _ranges(sorted(_having(tokens, values)))
        return [
            title,
            lines,
            Text(f"\nNo token of prompt {group} has a {COLOURINGS[by].label}; prompts that have one: {having}.", style="dim"),
        ]
    return [title, lines, _legend(by, largest)]


def _verdict(sibling: Response) -> Text:
    style = {"right": "blue", "wrong": "yellow", "ungraded": "dim"}[sibling.verdict]
    return Text(f"{sibling.row:>4} {sibling.verdict}", style=style)


def _advantage(tokens: StepTokens, sibling: Response) -> str:
    advantage = tokens.values("advantage")[sibling.start]
    return "" if advantage is None else f"A {advantage:+.2f}"


def _line(tokens: StepTokens, sibling: Response, values: Sequence[float | None], largest: float) -> Text:
    line = Text()
    for at in range(sibling.start, sibling.stop):
        value = values[at]
        line.append(tokens.text(at), style="dim" if value is None else shade(value, 0.0, largest))
    return line


def _legend(by: str, largest: float) -> Text:
    line = Text("\n")
    if largest == 0:
        return line.append(f"every token: {COLOURINGS[by].middle:g}, {COLOURINGS[by].label}", style="dim")
    signs = (1.0,) if by == "entropy" else (1.0, -1.0)
    for sign in signs:
        for size in (0.25, 1.0):
            line.append(f" {COLOURINGS[by].middle + sign * size * largest:+.3g} ", style=shade(sign * size, 0.0, 1.0))
        line.append("  ")
    return line.append(COLOURINGS[by].label, style="dim")


def credit_line(prompt: str, pieces: Sequence[str], credit: Sequence[float], verdict: str) -> Text:
    """One response. The colours compare tokens within the response; the range at the end of the line compares responses."""
    sizes = [abs(value) for value in credit] or [0.0]
    line = Text(f"  {verdict:<6}{sanitize(prompt)} ")
    for piece, value in zip(pieces, credit, strict=True):
        line.append(sanitize(piece), style=shade(value, min(sizes), max(sizes)))
    # Adding 0.0 turns -0.0, the credit of an excluded token, into 0.0.
    line.append(f"   from {min(credit, default=0.0) + 0.0:+.2f} to {max(credit, default=0.0) + 0.0:+.2f}", style="dim")
    return line


def credit_legend() -> Text:
    line = Text("  ")
    for sign, label in ((1.0, "reinforced"), (-1.0, "discouraged")):
        for size, word in ((1.0, "less"), (2.0, "more")):
            line.append(f" {word} ", style=shade(sign * size, 1.0, 2.0))
        line.append(f" {label}   ")
    return line.append("(than other tokens of the same response)", style="dim")


BLUE, ORANGE, WHITE = (40, 110, 220), (225, 115, 20), (255, 255, 255)

FAINT = 0.2


def shade(credit: float, weakest: float, strongest: float) -> str:
    """Style of a token: a background between white and the colour of the sign, by the position of |credit| between the two bounds."""
    if credit == 0:
        return "default"
    place = (abs(credit) - weakest) / (strongest - weakest) if strongest > weakest else 0.5
    strength = FAINT + (1 - FAINT) * place
    target = BLUE if credit > 0 else ORANGE
    red, green, blue = (round(white + (end - white) * strength) for white, end in zip(WHITE, target, strict=True))
    ink = "white" if strength > 0.75 else "black"
    return f"{ink} on rgb({red},{green},{blue})"
