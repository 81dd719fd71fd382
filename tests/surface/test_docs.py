"""Every Python example in README and docs runs, and prints what the page says it prints."""

import re
import runpy
from functools import partial
from pathlib import Path

import pytest

from forked import run_forked

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<output>.*?)```)?", re.DOTALL)
EXAMPLES = [
    pytest.param(
        match["code"],
        match["output"],
        id=f"{page.relative_to(ROOT)}:{page.read_text()[: match.start()].count(chr(10)) + 1}",
        marks=[pytest.mark.bubblewrap] if page.name == "sandbox.md" else [],
    )
    for page in PAGES
    for match in EXAMPLE.finditer(page.read_text())
]
DRAWS_TOKENS = ("collect(", "train(")
"""What a sampled token is may turn on the last bit of another processor; such examples must run, not match to the digit."""


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_an_example_runs_as_printed(tmp_path: Path, code: str, output: str | None) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    done = run_forked(partial(runpy.run_path, str(script), run_name="__main__"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if output is not None and not any(call in code for call in DRAWS_TOKENS):
        assert done.stdout.strip() == output.strip()


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        # A subscript that is called looks like a link, in code.
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
