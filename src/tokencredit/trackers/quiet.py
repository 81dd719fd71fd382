"""Packages that talk while a progress line is drawn."""

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO


@contextmanager
def quiet() -> Iterator[None]:
    """Drops what is printed. Nor can anything be asked: where standard error is no terminal, nobody would answer."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield
