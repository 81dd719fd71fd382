"""The JSON of a comparison: everything the table and the page show, and every row it was computed from."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokencredit.errors import ConfigError
from tokencredit.lab.compare.caveats import notes
from tokencredit.lab.compare.design import Design
from tokencredit.lab.compare.results import Row
from tokencredit.lab.compare.runner import Failure
from tokencredit.lab.compare.summary import summarize
from tokencredit.lab.compare.tuning import standings, tune
from tokencredit.storage.atomic import atomic_write
from tokencredit.text import suggest

JSON_FILE, PAGE_FILE = "comparison.json", "comparison.html"
THRESHOLD = 0.8
KIND = "tokencredit comparison"
PARTS = (
    "command",
    "commit",
    "uncommitted",
    "python",
    "platform",
    "packages",
    "design",
    "settings",
    "remarks",
    "missing",
    "failed",
    "tuning",
    "runs",
)


def check_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise ConfigError(f"threshold is {threshold:g}; it is an accuracy, above 0 and at most 1")


def make_document(
    design: Design,
    rows: Sequence[Row],
    failures: Sequence[Failure],
    *,
    missing: int,
    threshold: float,
    settings: Mapping[str, Any],
    remarks: Sequence[str],
    made_by: Mapping[str, Any],
) -> dict[str, Any]:
    """`made_by`: the command, the commit and the versions; `settings`: what is common to all and what is a recipe's own."""
    tuned = tune(design, rows, {failure.run.key for failure in failures}) if design.tunes else []
    told = {
        "kind": KIND,
        **made_by,
        "design": {
            "recipes": [arm.label for arm in design.arms],
            "controls": [arm.label for arm in design.arms if arm.control],
            "reference": design.reference,
            "bases": dict(design.bases),
            "seeds": list(design.seeds),
            "rates": list(design.rates),
            "tuning_seeds": list(design.tuning_seeds),
            "finalists": design.finalists,
            "always": list(design.always),
            "threshold": threshold,
        },
        "settings": dict(settings),
        "remarks": list(remarks),
        "missing": missing,
        "failed": [failure.to_json() for failure in failures],
        "tuning": [one.to_json() for one in tuned],
        "standings": [one.to_json() for one in standings(design, rows, tuned)],
        "runs": list(rows),
    }
    return concluded(told)


def concluded(told: dict[str, Any]) -> dict[str, Any]:
    """With what its rows say."""
    # Comparisons were written without standings once; then everybody went on.
    told = {"standings": [], **told}
    design = told["design"]
    left = {one["recipe"] for one in told["standings"] if not one["goes_on"]}
    recipes = [recipe for recipe in design["recipes"] if recipe not in left]
    summary = summarize(
        told["runs"],
        recipes=recipes,
        controls=design["controls"],
        bases=list(design["bases"]),
        reference=design["reference"],
        threshold=design["threshold"],
    )
    return {**told, "summary": summary, "notes": notes(told["runs"], summary, {**design, **told, "recipes": recipes})}


def read_document(out: Path, *, threshold: float | None = None, reference: str | None = None) -> dict[str, Any]:
    """As it was written, with another threshold or reference where asked for."""
    path = out / JSON_FILE
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["kind"] != KIND:
            raise ValueError(told["kind"])
        if absent := [name for name in PARTS if name not in told]:
            raise KeyError(f"without {', '.join(absent)}")
        design = told["design"]
        if reference is not None and reference not in design["recipes"]:
            raise ConfigError(f"reference {reference!r} is not among the recipes; {suggest(reference, design['recipes'])}")
        design |= {"threshold": design["threshold"] if threshold is None else threshold, "reference": reference or design["reference"]}
        return concluded(told)
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ConfigError(f"out {out} holds no comparison: there is no {JSON_FILE}; name --recipes to make one") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as problem:
        raise ConfigError(f"{path} cannot be read as a comparison: {type(problem).__name__} {problem}") from None


def write_document(told: Mapping[str, Any], out: Path) -> None:
    atomic_write(out / JSON_FILE, json.dumps(told, indent=1, allow_nan=False) + "\n")
