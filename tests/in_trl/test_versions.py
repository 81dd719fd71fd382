"""Another version of TRL, or none: the adapter says which ones work."""

from importlib import metadata

import pytest

from tokencredit.integrations.support import EngineUnavailableError, require

ASKED = metadata.version


def _installed(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> str:
        if name != "trl":
            return ASKED(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)


def _import() -> None:
    from tokencredit.integrations.trl import CreditGRPOTrainer  # noqa: F401


@pytest.mark.parametrize("version", ["1.14.0", "0.29.1", "2.0.0", "2.0.0.dev0"])
def test_an_unsupported_version_stops_the_import(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(version, monkeypatch)
    words = rf"trl {version} is installed, but tokencredit works with trl >=1\.15,<2 \(tested on 1\.16\.0\)"
    with pytest.raises(ImportError, match=words):
        _import()


def test_a_missing_trl_stops_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(None, monkeypatch)
    with pytest.raises(EngineUnavailableError, match=r"trl is not installed; .* pip install 'tokencredit\[trl\]'"):
        _import()


@pytest.mark.parametrize("version", ["1.15.0", "1.16.0", "1.17.0.dev0", "1.99.1"])
def test_supported_versions_pass(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(version, monkeypatch)
    assert require("trl") == version
