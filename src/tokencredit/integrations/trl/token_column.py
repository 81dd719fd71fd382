"""One number per token as a cell of TRL's table of completions."""


class TokenColumn(list[float]):
    """All of them in the file; where the table is printed, only their range."""

    def __str__(self) -> str:
        return f"{min(self):+.2f} to {max(self):+.2f}" if self else "no token"
