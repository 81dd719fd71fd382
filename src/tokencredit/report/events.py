"""What went wrong in a run, and where it was continued: events.jsonl and resumes.jsonl as rows a person reads.

What a reader must know before trusting a run: foreign code that ran, and that it has not finished.
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokencredit.report.format import percent
from tokencredit.report.methods import flat
from tokencredit.report.run_reader import Run, setting
from tokencredit.report.token_view import number
from tokencredit.text import brief, sanitize

KINDS = {
    "guard": "batch refused",
    "warning": "warning",
    "out-of-memory": "out of memory",
    "ungraded": "not graded",
    "gold": "gold answers",
    "damaged": "damaged checkpoint",
    "stopped": "stopped",
}
SEVERE = frozenset({"guard", "out-of-memory", "damaged", "stopped"})
"""Something was lost or left out; the rest is to be looked at."""

FEW, MOST, MOST_ROWS = 3, 100, 100
"""Events of a kind that keep a row each; single events listed under a folded row; rows, and resumes, of one run."""

NAMED, LISTED = 5, 20
"""Reasons that are named, entries of a list that are shown."""

LONGEST = 1000


class Said(NamedTuple):
    """Two pieces of foreign text side by side: `stage`, `loss`; `12 ×`, `the grader timed out`."""

    name: str
    value: str


class Event(NamedTuple):
    step: int
    message: str
    more: tuple[Said, ...]
    """What else was written down."""


class Row(NamedTuple):
    kind: str
    severe: bool
    first: Event
    last: Event
    times: int
    steps: int
    more: tuple[Said, ...]
    events: tuple[Event, ...]
    """The single events of a folded row, at most MOST of them; empty where the row is one event."""


class Changed(NamedTuple):
    field: str
    old: str
    new: str


class Resume(NamedTuple):
    """`Continued after step 40`, with `steps` from `80` to `120`."""

    told: str
    changed: tuple[Changed, ...] = ()


class Happened(NamedTuple):
    rows: tuple[Row, ...]
    resumes: tuple[Resume, ...]
    left_out: int
    """Rows and resumes beyond MOST_ROWS, the later ones: a page stays readable whatever a file holds."""


def run_events(run: Run) -> Happened:
    """Rows in the order in which they began; both empty for a quiet run."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in run.events:
        by_kind.setdefault(str(event["kind"]), []).append(event)
    rows = sorted((row for kind, events in by_kind.items() for row in _rows(kind, events)), key=lambda row: row.first.step)
    resumes = _resumes(run.resumes)
    left_out = len(rows[MOST_ROWS:]) + len(resumes[MOST_ROWS:])
    return Happened(tuple(rows[:MOST_ROWS]), tuple(resumes[:MOST_ROWS]), left_out)


def _rows(kind: str, events: Sequence[dict[str, Any]]) -> list[Row]:
    told = [_event(event) for event in events]
    name, severe = brief(KINDS.get(kind, kind)), kind in SEVERE
    if len(events) <= FEW:
        return [Row(name, severe, one, one, 1, 1, one.more, ()) for one in told]
    in_order = sorted(told, key=lambda one: one.step)
    steps = len({one.step for one in told})
    return [Row(name, severe, in_order[0], in_order[-1], len(told), steps, _totals(events), tuple(in_order[:MOST]))]


def _event(event: Mapping[str, Any]) -> Event:
    others = {key: value for key, value in event.items() if key not in ("step", "kind", "message")}
    return Event(
        event["step"], brief(str(event["message"]), LONGEST), tuple(said for key, value in others.items() for said in _extra(key, value))
    )


def _extra(key: str, value: Any) -> list[Said]:
    share = number(value) if key == "share" else None
    if share is not None:
        return [Said(percent(share), "of the batch")]
    if isinstance(value, Mapping):
        return _counted(value)
    if isinstance(value, list | tuple):
        listed = ", ".join(brief(str(one), 40) for one in value[:LISTED])
        return [Said(brief(key), f"{listed} and {len(value) - LISTED} more" if len(value) > LISTED else listed)]
    return [Said(brief(key), brief(str(value)))]


def _counted(counts: Mapping[str, Any]) -> list[Said]:
    """`12 × the grader timed out`, `3 × no answer`: most first."""
    ordered = sorted(counts.items(), key=lambda item: -(number(item[1]) or 0.0))
    named = [Said(f"{brief(str(count), 40)} ×", brief(str(reason))) for reason, count in ordered[:NAMED]]
    return [*named, Said(f"{len(ordered) - NAMED}", "more")] if len(ordered) > NAMED else named


def _totals(events: Sequence[Mapping[str, Any]]) -> tuple[Said, ...]:
    """What can be added up over events of one kind: the counts of their tables."""
    totals: dict[str, Counter[str]] = {}
    for event in events:
        for key, value in event.items():
            if isinstance(value, Mapping):
                whole = {reason: int(count) for reason, count in value.items() if number(count) is not None}
                totals.setdefault(key, Counter()).update(whole)
    return tuple(said for counts in totals.values() for said in _counted(counts))


def _resumes(resumes: Sequence[Mapping[str, Any]]) -> list[Resume]:
    """Many that changed nothing are one sentence."""
    plain = [resume["step"] for resume in resumes if not resume.get("changed")]
    folded = len(plain) > FEW
    together = (
        f"Continued {len(plain)} times without a change, first after step {min(plain)}, last after step {max(plain)}" if folded else ""
    )
    told = [_resumed(resume) for resume in resumes if resume.get("changed") or not folded]
    return [Resume(together), *told] if folded else told


def _resumed(resume: Mapping[str, Any]) -> Resume:
    changed = resume.get("changed")
    fields = tuple(_change(field, values) for field, values in changed.items()) if isinstance(changed, Mapping) else ()
    return Resume(f"Continued after step {resume['step']}", fields)


def _change(field: str, values: Any) -> Changed:
    ends = values if isinstance(values, list | tuple) and len(values) == 2 else ["unknown", values]
    old, new = (f"{end:g}" if isinstance(end, float) else "unset" if end is None else brief(str(end)) for end in ends)
    return Changed(brief(field), old, new)


TRUSTED = (
    "Code shipped with the model was executed (trust_remote_code = true). "
    "What this run did and wrote down is only as trustworthy as that code."
)
NOT_ISOLATED = (
    'Programs written by the model were run without isolation (task.isolation = "plain"): in child processes with limits, '
    "but with the rights of the person who trained."
)


class Notice(NamedTuple):
    text: str
    command: str = ""
    grave: bool = False


def notices(run: Run) -> list[Notice]:
    found = []
    if any(value is True and path.split(".")[-1] == "trust_remote_code" for path, value in flat(run.config).items()):
        found.append(Notice(TRUSTED, grave=True))
    if setting(run.config, "task.type") == "code" and setting(run.config, "task.isolation") == "plain":
        found.append(Notice(NOT_ISOLATED, grave=True))
    if run.metrics and not run.result:
        found.append(_unfinished(run))
    return found


def _unfinished(run: Run) -> Notice:
    going_on = "continue it with:" if run.has_checkpoint else "begin it again (it has no checkpoint yet) with:"
    return Notice(f"Unless it is still running, {going_on}", f"tokencredit train --resume {shlex.quote(sanitize(run.name))}")
