"""docs/architecture.md names the packages that there are, files that exist, and the layers that import-linter enforces."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tokencredit"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MAP = PAGE.partition("## The map")[2].partition("## The data flow")[0]


def packages() -> set[str]:
    """Every folder with Python files, as `config/recipes/`."""
    return {f"{file.parent.relative_to(PACKAGE)}/" for file in PACKAGE.glob("*/**/*.py")}


def test_the_map_has_one_row_for_every_package() -> None:
    rows = re.findall(r"^\| `(\w+/)` \|", MAP, flags=re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == {package for package in packages() if package.count("/") == 1}


def test_the_map_names_every_package_inside_a_package() -> None:
    named = set(re.findall(r"`(\w+/\w+/)`", MAP))
    assert named == {package for package in packages() if package.count("/") > 1}


def test_the_map_names_every_module_outside_the_packages() -> None:
    assert set(re.findall(r"`(\w+\.py)`", MAP)) == {file.name for file in PACKAGE.glob("*.py")}


def test_every_path_on_the_page_exists() -> None:
    paths = re.findall(r"`([\w./-]+(?:/|\.py|\.toml))`", PAGE)
    assert len(paths) > 60
    assert [path for path in paths if not (PACKAGE / path).exists() and not (ROOT / path).exists()] == []


def test_the_layers_are_those_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    block = re.search(r"```text\n(.*?)```", PAGE.partition("## The layering rule")[2], flags=re.DOTALL)
    assert block is not None
    assert block[1].splitlines() == layers
