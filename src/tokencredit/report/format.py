"""Formats numbers for the page."""

from decimal import ROUND_HALF_UP, Decimal


def hundreds(share: float) -> str:
    """`6.3` for 0.0625. Halves are rounded away from zero, as in the script of the page."""
    return str(Decimal(100 * share).quantize(Decimal("0.1"), ROUND_HALF_UP))


def percent(share: float) -> str:
    """`6.3 %` for 0.0625, with a narrow no-break space."""
    return f"{hundreds(share)}\u202f%"


def grouped(count: float) -> str:
    """`12,345`."""
    return f"{count:,.0f}"


def duration(seconds: float) -> str:
    """`0.4 s`, `47 s`, `12 min 3 s`, `3 h 20 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
