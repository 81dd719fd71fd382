"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """Of the installed package; a source tree that is only on the path has none, which must not cost anybody a page."""
    try:
        return version("tokencredit")
    except PackageNotFoundError:
        return "from source"
