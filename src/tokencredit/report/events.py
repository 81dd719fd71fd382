"""The events and resumes of a run as table rows (`run_events`), and the notices at the top of its report (`notices`).

Events come from events.jsonl, resumes from resumes.jsonl. More than FEW events of one kind are folded into one row. Notices state what a
reader must know before trusting the numbers: untrusted code was executed, or the run has not finished.
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
"""Kinds of events in which data was lost or a batch was skipped."""

FEW, MOST, MOST_ROWS = 3, 100, 100
"""Events of one kind with a row each; single events listed under a folded row; rows, and resumes, of one run."""

NAMED, LISTED = 5, 20
"""Reasons shown per event; entries shown per list."""

LONGEST = 1000
"""Characters shown of a message."""


class Detail(NamedTuple):
    """A name and a value from the file: `stage`, `loss`; `12 ×`, `the grader timed out`. Both may be untrusted text."""

    name: str
    value: str


class Event(NamedTuple):
    step: int
    message: str
    details: tuple[Detail, ...]
    """The other fields of the event."""


class EventRow(NamedTuple):
    """One event, or many events of one kind."""

    kind: str
    severe: bool
    first: Event
    last: Event
    total: int
    steps: int
    details: tuple[Detail, ...]
    events: tuple[Event, ...]
    """The single events of a folded row, at most MOST; empty if the row is one event."""


class Change(NamedTuple):
    field: str
    old: str
    new: str


class Resume(NamedTuple):
    """`Resumed after step 40`, with `steps` changed from `80` to `120`."""

    sentence: str
    changed: tuple[Change, ...] = ()


class RunEvents(NamedTuple):
    rows: tuple[EventRow, ...]
    resumes: tuple[Resume, ...]
    left_out: int
    """Number of later rows and resumes that are left out, so that the page stays readable."""


def run_events(run: Run) -> RunEvents:
    """Rows ordered by their first step; rows and resumes are empty if nothing was recorded."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in run.events:
        by_kind.setdefault(str(event["kind"]), []).append(event)
    rows = sorted((row for kind, events in by_kind.items() for row in _rows(kind, events)), key=lambda row: row.first.step)
    resumes = _resumes(run.resumes)
    left_out = len(rows[MOST_ROWS:]) + len(resumes[MOST_ROWS:])
    return RunEvents(tuple(rows[:MOST_ROWS]), tuple(resumes[:MOST_ROWS]), left_out)


def _rows(kind: str, events: Sequence[dict[str, Any]]) -> list[EventRow]:
    found = [_event(event) for event in events]
    name, severe = brief(KINDS.get(kind, kind)), kind in SEVERE
    if len(events) <= FEW:
        return [EventRow(name, severe, one, one, 1, 1, one.details, ()) for one in found]
    in_order = sorted(found, key=lambda one: one.step)
    steps = len({one.step for one in found})
    return [EventRow(name, severe, in_order[0], in_order[-1], len(found), steps, _totals(events), tuple(in_order[:MOST]))]


def _event(event: Mapping[str, Any]) -> Event:
    others = {key: value for key, value in event.items() if key not in ("step", "kind", "message")}
    return Event(
        event["step"],
        brief(str(event["message"]), LONGEST),
        tuple(detail for key, value in others.items() for detail in _details(key, value)),
    )


def _details(key: str, value: Any) -> list[Detail]:
    share = number(value) if key == "share" else None
    if share is not None:
        return [Detail(percent(share), "of the batch")]
    if isinstance(value, Mapping):
        return _counted(value)
    if isinstance(value, list | tuple):
        listed = ", ".join(brief(str(one), 40) for one in value[:LISTED])
        return [Detail(brief(key), f"{listed} and {len(value) - LISTED} more" if len(value) > LISTED else listed)]
    return [Detail(brief(key), brief(str(value)))]


def _counted(counts: Mapping[str, Any]) -> list[Detail]:
    """`12 × the grader timed out`, `3 × no answer`: the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: -(number(item[1]) or 0.0))
    named = [Detail(f"{brief(str(count), 40)} ×", brief(str(reason))) for reason, count in ordered[:NAMED]]
    return [*named, Detail(f"{len(ordered) - NAMED}", "more")] if len(ordered) > NAMED else named


def _totals(events: Sequence[Mapping[str, Any]]) -> tuple[Detail, ...]:
    """The sum of the counts in the tables of several events of one kind."""
    totals: dict[str, Counter[str]] = {}
    for event in events:
        for key, value in event.items():
            if isinstance(value, Mapping):
                whole = {reason: int(count) for reason, count in value.items() if number(count) is not None}
                totals.setdefault(key, Counter()).update(whole)
    return tuple(detail for counts in totals.values() for detail in _counted(counts))


def _resumes(resumes: Sequence[Mapping[str, Any]]) -> list[Resume]:
    """More than FEW resumes without changes are folded into one sentence."""
    plain = [resume["step"] for resume in resumes if not resume.get("changed")]
    folded = len(plain) > FEW
    together = f"Resumed {len(plain)} times without changes, first after step {min(plain)}, last after step {max(plain)}" if folded else ""
    single = [_resumed(resume) for resume in resumes if resume.get("changed") or not folded]
    return [Resume(together), *single] if folded else single


def _resumed(resume: Mapping[str, Any]) -> Resume:
    changed = resume.get("changed")
    fields = tuple(_change(field, values) for field, values in changed.items()) if isinstance(changed, Mapping) else ()
    return Resume(f"Resumed after step {resume['step']}", fields)


def _change(field: str, values: Any) -> Change:
    ends = values if isinstance(values, list | tuple) and len(values) == 2 else ["unknown", values]
    old, new = (f"{end:g}" if isinstance(end, float) else "unset" if end is None else brief(str(end)) for end in ends)
    return Change(brief(field), old, new)


REMOTE_CODE = (
    "Code shipped with the model was executed (trust_remote_code = true). "
    "The files and numbers of this run are only as trustworthy as that code."
)

NOT_ISOLATED = (
    'Programs written by the model were run without isolation (task.isolation = "plain"): in child processes with limits, '
    "but with the permissions of the user who trained."
)


class Notice(NamedTuple):
    text: str
    command: str = ""
    severe: bool = False


def notices(run: Run) -> list[Notice]:
    """The notices that apply to the run; none for a finished run without untrusted code."""
    found = []
    if any(value is True and path.split(".")[-1] == "trust_remote_code" for path, value in flat(run.config).items()):
        found.append(Notice(REMOTE_CODE, severe=True))
    if setting(run.config, "task.type") == "code" and setting(run.config, "task.isolation") == "plain":
        found.append(Notice(NOT_ISOLATED, severe=True))
    if run.metrics and not run.result:
        found.append(_unfinished(run))
    return found


def _unfinished(run: Run) -> Notice:
    remedy = "resume it with:" if run.has_checkpoint else "restart it (it has no checkpoint yet) with:"
    return Notice(f"If this run is not running any more, {remedy}", f"tokencredit train --resume {shlex.quote(sanitize(run.name))}")
