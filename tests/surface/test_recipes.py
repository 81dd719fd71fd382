"""Every recipe says what it is, where its numbers come from and what to know; every choice is documented."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from fault.command import tokencredit
from tokencredit.commands.recipes import departures
from tokencredit.config import Correction, Kl, MethodConfig
from tokencredit.config.base import Origin
from tokencredit.config.recipes import FAMILIES, RECIPES
from tokencredit.config.train import CHOICES, STAGES

DOCS = Path(__file__).parents[2] / "docs"
EVERY_CHOICE = [(stage, name, choice) for stage in STAGES for name, choice in CHOICES[stage].items()]


@pytest.mark.parametrize(("stage", "name", "choice"), EVERY_CHOICE)
def test_every_choice_has_formula_page_and_origins(stage: str, name: str, choice: type[BaseModel]) -> None:
    assert issubclass(choice, MethodConfig)
    assert len(choice.formula) > 8
    assert choice.__doc__
    without = [field for field, info in choice.model_fields.items() if not any(isinstance(part, Origin) for part in info.metadata)]
    assert without == ["type"]
    undescribed = [field for field, info in choice.model_fields.items() if field != "type" and not _described(choice, field)]
    assert not undescribed
    if name != "none":
        page = (DOCS / "methods" / f"{name}.md").read_text()
        assert f"**{stage}**" in page
        for field in choice.model_fields:
            told = f"`{field}`" in page or f"`{stage}.{field}`" in page
            assert field == "type" or told, f"{name}.md does not tell of {field}"


def _described(choice: type[BaseModel], field: str) -> bool:
    """A string below the field: the help text of its flag."""
    import inspect

    for parent in choice.__mro__:
        source = inspect.getsource(parent) if issubclass(parent, MethodConfig) else ""
        lines = source.splitlines()
        for index, line in enumerate(lines[:-1]):
            if line.strip().startswith(f"{field}:"):
                return lines[index + 1].strip().startswith('"""')
    return False


@pytest.mark.parametrize("terms", [Kl, Correction])
def test_terms_beside_the_stages_have_origins(terms: type[BaseModel]) -> None:
    for info in terms.model_fields.values():
        assert any(isinstance(part, Origin) for part in info.metadata)


@pytest.mark.parametrize("name", RECIPES)
def test_numbers_that_depart_from_a_default_have_an_origin(name: str) -> None:
    entry = RECIPES[name]
    changed = {f"{stage}.{field}" for stage in STAGES for field in departures(getattr(entry.recipe, stage))}
    assert changed <= set(entry.origins), changed - set(entry.origins)
    for path in entry.origins:
        stage, field = path.split(".")
        assert hasattr(getattr(entry.recipe, stage), field), path


def test_families_hold_every_recipe_once() -> None:
    names = [name for family in FAMILIES.values() for name in family]
    assert names == list(RECIPES)
    assert len(set(names)) == len(names)


def test_the_paper_index_names_every_recipe() -> None:
    index = (DOCS / "paper-index.md").read_text()
    missing = [name for name in RECIPES if f"`{name}`" not in index and f"--recipe {name}`" not in index]
    assert not missing


@pytest.mark.parametrize("name", ["delta", "fade", "dfpo", "ibpo-mask", "ntf-whitened", "dapo-dynamic", "right-once"])
def test_a_recipe_in_full(name: str, tmp_path: Path) -> None:
    done = tokencredit("recipes", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    entry = RECIPES[name]
    assert entry.paper in said
    for stage in STAGES:
        choice = getattr(entry.recipe, stage)
        assert f"{stage}: {choice.model_dump()['type']}." in said
        assert " ".join(choice.formula.split()) in said
        for caveat in choice.caveats:
            assert caveat in said
        for field in type(choice).model_fields:
            assert field == "type" or field in said
    for words in (*entry.origins.values(), *entry.caveats):
        assert words in said
    assert ("one response per prompt" in said) == entry.asks_once
    assert ("optimizer: steps_per_batch 8," in said) == (name == "right-once")


def test_origins_are_the_recipe_s_where_it_departs(tmp_path: Path) -> None:
    said = tokencredit("recipes", "dapo", cwd=tmp_path).stdout
    line = next(line for line in said.splitlines() if "dual_clip" in line)
    assert line.split()[:2] == ["dual_clip", "10"]
    assert "public DAPO scripts" in line


def test_an_unknown_recipe_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    done = tokencredit("recipes", "dfop", cwd=tmp_path)
    assert done.returncode == 2
    assert "dfpo" in done.stderr
