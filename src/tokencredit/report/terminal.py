"""Tokens in colour: blue where credit is positive, orange where negative, stronger where there is more of it."""

from collections.abc import Sequence

from rich.text import Text

BLUE, ORANGE = (40, 110, 220), (225, 115, 20)
WHITE = (255, 255, 255)


def _shade(credit: float, credits: Sequence[float]) -> str:
    """Background between white and the sign's colour, by where |credit| lies among the shown ones of its sign."""
    if credit == 0:
        return "default"
    peers = [abs(value) for value in credits if value * credit > 0]
    low, high = min(peers), max(peers)
    strength = 0.25 + 0.75 * ((abs(credit) - low) / (high - low) if high > low else 0.5)
    target = BLUE if credit > 0 else ORANGE
    red, green, blue = (round(white + (end - white) * strength) for white, end in zip(WHITE, target, strict=True))
    ink = "white" if strength > 0.6 else "black"
    return f"{ink} on rgb({red},{green},{blue})"


def credit_line(prompt: str, pieces: Sequence[str], credit: Sequence[float], credits: Sequence[float], verdict: str) -> Text:
    """One response; `credits` are all credits shown together, so that shades compare across lines."""
    line = Text(f"  {verdict:<6}{prompt} ")
    for piece, value in zip(pieces, credit, strict=True):
        line.append(piece.replace("\n", "\\n"), style=_shade(value, credits))
    average = sum(credit) / max(1, len(credit))
    line.append(f"   mean {average:+.2f}, from {min(credit, default=0.0):+.2f} to {max(credit, default=0.0):+.2f}", style="dim")
    return line


def credit_legend(credits: Sequence[float]) -> Text:
    line = Text("  ")
    for sign, label in ((1, "reinforced"), (-1, "discouraged")):
        values = sorted((value for value in credits if value * sign > 0), key=abs)
        if values:
            line.append(f" {values[0]:+.2f} ", style=_shade(values[0], credits))
            line.append(f" {values[-1]:+.2f} ", style=_shade(values[-1], credits))
            line.append(f" {label}   ")
    return line
