"""HTML pages of the lab. Shared templates and assets are in `tokencredit.report`."""

from collections.abc import Sequence
from importlib import resources

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def page_environment() -> Environment:
    """Templates of the lab first, then those of the report."""
    loader = ChoiceLoader([PackageLoader("tokencredit.lab.pages"), PackageLoader("tokencredit.report")])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def read_assets(names: Sequence[str]) -> str:
    """The text of these styles or scripts, each from the lab's assets, or from the report's if the lab has none of that name."""
    folders = [resources.files(package).joinpath("assets") for package in ("tokencredit.lab.pages", "tokencredit.report")]
    return "\n".join(next(file for folder in folders if (file := folder / name).is_file()).read_text(encoding="utf-8") for name in names)
