"""Which versions of another engine an adapter takes, and what it says of the others."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tokencredit.errors import ConfigError
from tokencredit.integrations.support import SUPPORTED, TESTED, EngineUnavailableError, require

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("trl", "1.15"),
        ("trl", "1.15.0"),
        ("trl", "1.16.0"),
        ("trl", "1.99.3"),
        ("trl", "1.17.0.dev0"),
        ("verl", "0.9.0"),
        ("verl", "0.9.1+cpu"),
    ],
)
def test_a_version_that_works_is_told(monkeypatch: pytest.MonkeyPatch, engine: str, version: str) -> None:
    installed(monkeypatch, {engine: version})
    assert require(engine) == version


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("trl", "1.14.9"),
        ("trl", "0.29.0"),
        ("trl", "2.0.0"),
        ("trl", "2.0.0rc1"),
        ("trl", "1.15.0rc1"),
        ("trl", "main"),
        ("verl", "0.8.3"),
        ("verl", "0.10.0"),
        ("verl", "0.10.0.dev0"),
    ],
)
def test_another_version_is_refused_with_those_that_work(monkeypatch: pytest.MonkeyPatch, engine: str, version: str) -> None:
    installed(monkeypatch, {"trl": "1.16.0", "verl": "0.9.1", engine: version})
    with pytest.raises(EngineUnavailableError) as refusal:
        require(engine)
    assert str(refusal.value) == (
        f"{engine} {version} is installed, but tokencredit works with {engine} {SUPPORTED[engine]} (tested on {TESTED[engine]})"
    )


@pytest.mark.parametrize("engine", SUPPORTED)
def test_a_missing_engine_is_refused_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    installed(monkeypatch, {})
    with pytest.raises(EngineUnavailableError) as refusal:
        require(engine)
    said = f"{engine} is not installed; tokencredit works with {engine} {SUPPORTED[engine]} (tested on {TESTED[engine]})"
    assert str(refusal.value) == f"{said}: pip install 'tokencredit[{engine}]'"


def test_a_refusal_is_a_mistake_of_the_user_and_a_failed_import() -> None:
    assert issubclass(EngineUnavailableError, ConfigError)
    assert issubclass(EngineUnavailableError, ImportError)


@pytest.mark.parametrize("engine", SUPPORTED)
def test_the_extra_asks_for_the_versions_that_work(engine: str) -> None:
    asked = {Requirement(line).name: Requirement(line).specifier for line in PYPROJECT["optional-dependencies"][engine]}
    assert asked[engine] == SpecifierSet(SUPPORTED[engine])
    assert TESTED[engine] in asked[engine]
    assert SUPPORTED.keys() == TESTED.keys()


def test_no_engine_comes_with_the_base_install_or_with_another() -> None:
    asked = {extra: {Requirement(line).name for line in lines} for extra, lines in PYPROJECT["optional-dependencies"].items()}
    asked["base"] = {Requirement(line).name for line in PYPROJECT["dependencies"]}
    for extra, names in asked.items():
        assert names & SUPPORTED.keys() <= {extra}
