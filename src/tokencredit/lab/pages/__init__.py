"""HTML pages of the lab. Their own templates and assets are here; those that they share with the report are in its package."""

from collections.abc import Sequence
from importlib import resources

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def page_environment() -> Environment:
    """Templates of the lab first, then those of the report."""
    loader = ChoiceLoader([PackageLoader("tokencredit.lab.pages"), PackageLoader("tokencredit.report")])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def read_assets(names: Sequence[str]) -> str:
    """The text of these styles or scripts, each from the lab's folder, or from the report's where the lab has none of that name."""
    folders = [resources.files(package).joinpath("assets") for package in ("tokencredit.lab.pages", "tokencredit.report")]
    return "\n".join(next(file for folder in folders if (file := folder / name).is_file()).read_text(encoding="utf-8") for name in names)
