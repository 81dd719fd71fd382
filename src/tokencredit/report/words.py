"""Numbers as the page says them."""


def percent(share: float) -> str:
    return f"{100 * share:.1f}\u202f%"


def grouped(count: float) -> str:
    return f"{count:,.0f}".replace(",", "\u202f")


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
