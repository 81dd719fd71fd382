"""Which versions of another engine an adapter works with."""

from importlib import metadata

from packaging.specifiers import SpecifierSet

from tokencredit.errors import ConfigError

SUPPORTED = {"trl": ">=1.15,<2", "verl": ">=0.9,<0.10"}
"""As in this package's extras."""
TESTED = {"trl": "1.16.0", "verl": "0.9.1"}


class EngineUnavailableError(ConfigError, ImportError):
    """The engine is not installed, or in a version whose seams are not known to fit."""


def require(engine: str) -> str:
    """The installed version, or a refusal that says which ones work."""
    works = f"tokencredit works with {engine} {SUPPORTED[engine]} (tested on {TESTED[engine]})"
    try:
        found = metadata.version(engine)
    except metadata.PackageNotFoundError:
        raise EngineUnavailableError(f"{engine} is not installed; {works}: pip install 'tokencredit[{engine}]'") from None
    if found not in SpecifierSet(SUPPORTED[engine], prereleases=True):
        raise EngineUnavailableError(f"{engine} {found} is installed, but {works}")
    return found
