"""Write the tables of the pages that list methods and recipes: `make docs`.

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`; the rest of a page is written by hand. A test fails when a page is
stale.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tokencredit.config.credit import CreditBase
from tokencredit.config.recipes import FAMILIES, RECIPES
from tokencredit.config.train import METHODS, TrainConfig
from tokencredit.integrations.support import table as engines

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/concepts.md", "docs/engines.md", "docs/paper-index.md")
BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
DECIDES = {
    "shape": "the reward before comparison",
    "advantage": "one number per response",
    "credit": "one number per token",
    "objective": "the per-token surrogate and its aggregation",
    "batching": "which tokens meet in one optimizer step",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def stages() -> str:
    return table(("stage", "decides", "choices"), [(f"`{stage}`", DECIDES[stage], ", ".join(found)) for stage, found in METHODS.items()])


def families() -> str:
    default = TrainConfig.model_fields["recipe"].default
    named = {name: f"`{name}` (the default)" if name == default else f"`{name}`" for name in RECIPES}
    return table(("family", "recipes"), [(family, " ".join(named[name] for name in recipes)) for family, recipes in FAMILIES.items()])


def properties() -> str:
    """Of every method with its default settings; methods that declare nothing are left out."""
    rows = []
    for stage, methods in METHODS.items():
        for name, method in methods.items():
            choice = method()
            reads = "; ".join(f"`{need}`: {use}" for need, use in choice.needs.items())
            one = isinstance(choice, CreditBase) and choice.sees_one_response
            negative = "yes" if choice.needs_negative_side else ""
            row = (reads, choice.compares_siblings or "", negative, choice.keeps_state or "", "yes" if one else "")
            rows += [(f"{stage} `{name}`", *row)] if any(row) else []
    head = ("method", "evidence, and what for", "siblings", "needs a negative side", "state", "one response is enough")
    return table(head, rows)


def papers() -> str:
    return table(("recipe", "paper", "what it does"), [(f"`{name}`", entry.paper, entry.summary) for name, entry in RECIPES.items()])


TABLES: dict[str, Callable[[], str]] = {
    "stages": stages,
    "families": families,
    "properties": properties,
    "engines": engines,
    "papers": papers,
}


def written(page: str) -> str:
    """The page with every table as the code has it now."""
    return BLOCK.sub(lambda found: f"{found[1]}{TABLES[found['name']]()}\n{found[3]}", page)


if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        path = ROOT / name
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
