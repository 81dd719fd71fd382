"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """The version of the installed package, or "from source" for a source tree that is only on the path."""
    try:
        return version("tokencredit")
    except PackageNotFoundError:
        return "from source"
