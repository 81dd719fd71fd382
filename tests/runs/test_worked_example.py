"""The worked example of CONTRIBUTING.md adds a method to a copy of the repository, in no more than seven files."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "scripts", "docs", "README.md", "CONTRIBUTING.md", "LOG.md", "Makefile", "pyproject.toml")
BLOCK = re.compile(r'```(?P<kind>\w+) title="(?P<path>[^"]+)"\n(?P<body>.*?)```\n', re.DOTALL)
MOST_FILES = 7
RECORDED = {
    "README.md", "docs/concepts.md", "docs/engines.md", "docs/paper-index.md", "tests/surface/methods.json", "tests/golden/trajectory.json",
}  # fmt: skip
"""Files that `make record` writes."""
TESTS = (
    "tests/oracle/test_confidence.py",
    "tests/laws/test_confidence_laws.py",
    "tests/surface/test_methods.py",
    "tests/surface/test_generated_docs.py",
    "tests/surface/test_engine_docs.py",
    "tests/surface/test_recipes.py",
    "tests/surface/test_surface.py::test_recipe_names",
    "tests/surface/test_surface.py::test_help_names_every_choice",
    "tests/engine/test_crediting_evidence.py",
    "tests/runs/test_trajectory.py::test_three_steps_are_what_they_were[confidence]",
)


def apply_example(page: str, folder: Path) -> set[str]:
    """Write every titled block of the page; returns the files that it touched."""
    touched = set()
    for block in BLOCK.finditer(page):
        path = folder / block["path"]
        if block["kind"] == "diff":
            path.write_text(apply_hunks(path.read_text(), block["body"]))
        else:
            assert not path.exists(), f"{block['path']} is there already"
            path.write_text(block["body"])
        touched.add(block["path"])
    return touched


def apply_hunks(text: str, diff: str) -> str:
    for hunk in diff.split("@@\n"):
        lines = [line or " " for line in hunk.splitlines()]
        assert {line[0] for line in lines} <= set(" +-"), hunk
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"the page quotes lines that stand {text.count(before)} times in the file:\n{before}"
        text = text.replace(before, after)
    return text


def files_of(folder: Path) -> dict[str, bytes]:
    made = ("__pycache__", ".pytest_cache", ".hypothesis", ".ruff_cache", "egg-info")
    found = (path for name in COPIED for path in ([folder / name] if (folder / name).is_file() else (folder / name).rglob("*")))
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in found
        if path.is_file() and not any(word in part for part in path.parts for word in made)
    }


def python(folder: Path, *arguments: str) -> str:
    """Run a command against the package of a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example") / "repository"
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_the_worked_example_adds_a_method_in_seven_files(copy: Path, tmp_path: Path) -> None:
    before = files_of(copy)
    touched = apply_example((copy / "CONTRIBUTING.md").read_text(), copy)
    assert len(touched) <= MOST_FILES, sorted(touched)
    python(copy, "-m", "ruff", "check", *(path for path in touched if path.endswith(".py")))
    python(copy, "-m", "ruff", "format", "--check", *(path for path in touched if path.endswith(".py")))
    python(copy, "scripts/make_docs.py")
    python(copy, "tests/surface/methods.py")
    python(copy, "tests/golden/trajectory.py", "confidence")
    after = files_of(copy)
    changed = {name for name in after.keys() | before.keys() if after.get(name) != before.get(name)}
    assert changed == touched | RECORDED
    python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS)
    small = ("--steps", "1", "--sampling.prompts", "4", "--sampling.group-size", "4", "--evaluation.every", "0", "--no-report")
    sized = ("--evaluation.final-problems", "8", "--evaluation.problems", "8", "--evaluation.final-samples", "1", "--diagnose.every", "0")
    out = tmp_path / "run"
    python(copy, "-m", "tokencredit", "train", "--recipe", "confidence", "--out", str(out), *small, *sized)
    assert (out / "result.json").is_file()


def test_a_page_that_quotes_other_lines_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("one\ntwo\n")
    page = '```diff title="file.py"\n one\n+between\n three\n```\n'
    with pytest.raises(AssertionError, match="stand 0 times"):
        apply_example(page, tmp_path)
    assert apply_example(page.replace("three", "two"), tmp_path) == {"file.py"}
    assert (tmp_path / "file.py").read_text() == "one\nbetween\ntwo\n"
