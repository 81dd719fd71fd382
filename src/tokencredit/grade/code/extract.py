"""The program in a response."""

FENCE = "```"
_PYTHON = ("python", "python3", "py")


def extract_program(response: str) -> str:
    """The last block fenced as Python, else the last fenced block, else one that was never closed, else the whole text.

    One pass over the lines: a response may be long and hold fences without end.
    """
    blocks: list[tuple[str, str]] = []
    tag, begun = None, 0
    lines = response.split("\n")
    for number, line in enumerate(lines):
        if not line.startswith(FENCE):
            continue
        word = line.removeprefix(FENCE).strip()
        if tag is None:
            tag, begun = word.split(" ")[0].lower(), number + 1
        elif not word:
            blocks.append((tag, "\n".join(lines[begun:number]) + "\n"))
            tag = None
    python = [body for kind, body in blocks if kind in _PYTHON]
    if python or blocks:
        return python[-1] if python else blocks[-1][1]
    if tag in _PYTHON:
        return "\n".join(lines[begun:])
    # The prompt may have opened the fence that the response closes.
    return "\n".join(lines[: begun - 1]) if tag == "" and begun > 1 else response
