"""A source tree that is on the path but not installed has no version; pages are written all the same."""

from importlib import metadata

import pytest

from tokencredit.version import own_version


def test_installed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_version() == metadata.version("tokencredit")

    def nowhere(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("tokencredit.version.version", nowhere)
    assert own_version() == "from source"
