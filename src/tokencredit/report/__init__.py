"""Run folders to pages and terminal lines. Reads files only; nothing heavy is loaded before a page is asked for."""

from collections.abc import Sequence
from pathlib import Path


def write_report(folders: Sequence[Path], out: Path) -> None:
    """One self-contained HTML page for a run, or for several side by side. Without altair or vl-convert it has no charts and says so."""
    from tokencredit.report.page import write_page

    write_page(folders, out)
