"""Numbers in sentences."""

import math


def percent(share: float) -> str:
    """Halves are rounded up, as a browser does."""
    return "an unknown share" if math.isnan(share) else f"{100 * share + 1e-9:.1f} %"


def number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.3g}"


def count(amount: int, noun: str) -> str:
    return f"{amount} {noun}{'' if amount == 1 else 's'}"
