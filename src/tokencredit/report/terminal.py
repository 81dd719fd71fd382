"""Tokens in colour: blue where credit is positive, orange where negative, stronger where a response's token got more."""

from collections.abc import Sequence

from rich.text import Text

from tokencredit.text import visible

BLUE, ORANGE, WHITE = (40, 110, 220), (225, 115, 20), (255, 255, 255)
FAINT = 0.2


def shade(credit: float, weakest: float, strongest: float) -> str:
    """Background between white and the sign's colour, by where |credit| lies between the two."""
    if credit == 0:
        return "default"
    place = (abs(credit) - weakest) / (strongest - weakest) if strongest > weakest else 0.5
    strength = FAINT + (1 - FAINT) * place
    target = BLUE if credit > 0 else ORANGE
    red, green, blue = (round(white + (end - white) * strength) for white, end in zip(WHITE, target, strict=True))
    ink = "white" if strength > 0.75 else "black"
    return f"{ink} on rgb({red},{green},{blue})"


def credit_line(prompt: str, pieces: Sequence[str], credit: Sequence[float], verdict: str) -> Text:
    """One response, shaded by its own tokens: between responses the numbers at the end compare."""
    sizes = [abs(value) for value in credit] or [0.0]
    line = Text(f"  {verdict:<6}{visible(prompt)} ")
    for piece, value in zip(pieces, credit, strict=True):
        line.append(visible(piece), style=shade(value, min(sizes), max(sizes)))
    # Adding 0 turns the -0 of a token that was left out into a plain 0.
    line.append(f"   from {min(credit, default=0.0) + 0.0:+.2f} to {max(credit, default=0.0) + 0.0:+.2f}", style="dim")
    return line


def credit_legend() -> Text:
    line = Text("  ")
    for sign, label in ((1.0, "reinforced"), (-1.0, "discouraged")):
        for size, word in ((1.0, "less"), (2.0, "more")):
            line.append(f" {word} ", style=shade(sign * size, 1.0, 2.0))
        line.append(f" {label}   ")
    return line.append("(than other tokens of the same response)", style="dim")
