"""Run folders -> HTML pages, terminal lines, model cards. Reads files only; heavy packages are imported when a page is written."""

from collections.abc import Sequence
from pathlib import Path


def write_report(folders: Sequence[Path], out: Path) -> None:
    """Write one self-contained HTML page for one run or several. Without altair or vl-convert the page has no charts and says so."""
    from tokencredit.report.page import write_page

    write_page(folders, out)
