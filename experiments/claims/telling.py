"""A study's rows as Markdown: every recipe by itself, every claim with its numbers and its verdict."""

import math
from collections.abc import Sequence
from statistics import mean, median, stdev
from typing import Any

from claims.declaration import Study
from claims.judging import Judged, horizon_of, judge_claim
from claims.measures import MEASURES, measured
from claims.planning import place
from claims.settings import SETTINGS
from tokencredit.lab.compare.results import Row
from tokencredit.lab.compare.statistics import Bounds, Paired


def told(study: Study, document: dict[str, Any]) -> str:
    rows: list[Row] = document["rows"]
    seeds = sorted({row["seed"] for row in rows})
    lines = [f"## {study.name}: {study.paper}", "", f"Commit {document['commit'] or 'not known'}; seeds {_range(seeds)}; {len(rows)} runs."]
    if document["failed"]:
        lines.append(f"Failed: {'; '.join(document['failed'])}.")
    if document["missing"]:
        lines.append(f"Not there yet: {document['missing']} runs.")
    lines += ["", *(f"* {remark}." for remark in study.remarks)] if study.remarks else []
    for setting, recipes in study.arms.items():
        lines += ["", f"`{setting}`: `{SETTINGS[setting].flags}{' ' + document['flags'] if document['flags'] else ''}`", ""]
        lines += _by_itself(study, rows, setting, recipes)
    for claim in study.claims:
        judged, verdict = judge_claim(claim, rows, study)
        lines += ["", f"**{claim.said}** Reproduced if: {claim.reproduced_if}. Refuted if: {claim.refuted_if}.", ""]
        lines += _table(
            ["compared", "measure", "claimed", "difference, 95 % interval", "t", "by base", "outcome"], [_line(one) for one in judged]
        )
        lines += ["", f"Verdict: **{verdict}**: {numbers_of(judged)}."]
    lines += ["", "Not testable here:", "", *(f"* {reason}" for reason in study.not_testable)] if study.not_testable else []
    return "\n".join(lines) + "\n"


def overview(studies: Sequence[tuple[Study, dict[str, Any]]]) -> str:
    """Every claim in one table."""
    lines = []
    for study, document in studies:
        for claim in study.claims:
            judged, verdict = judge_claim(claim, document["rows"], study)
            lines.append([study.paper, claim.said, verdict, numbers_of(judged)])
    return "\n".join(["## All claims", "", *_table(["paper", "claim", "verdict", "numbers"], lines)]) + "\n"


def numbers_of(judged: Sequence[Judged]) -> str:
    """Of the tests that decide."""
    told_of = []
    for one in judged:
        if one.test.decides:
            measure = MEASURES[one.test.measure]
            words = _with_interval(one.found, one.interval, measure.kind)
            told_of.append(f"{one.test.what}, {measure.title} {words} ({one.outcome}{', ' + one.why if one.why else ''})")
    return "; ".join(told_of)


def _by_itself(study: Study, rows: Sequence[Row], setting: str, recipes: Sequence[str]) -> list[str]:
    lines = []
    for model in SETTINGS[setting].models:
        here = [row for row in rows if row["base"] == place(setting, model) and row["recipe"] in recipes]
        for recipe in recipes:
            own = [row for row in here if row["recipe"] == recipe]
            if own:
                horizon = horizon_of(here, study, setting)
                found = {name: [measured(name, row, horizon=horizon, threshold=study.threshold) for row in own] for name in study.columns}
                cells = [_spread(name, [value for value in found[name] if value is not None]) for name in study.columns]
                lines.append([model, study.names.get(recipe, recipe), str(len(own)), *cells])
    return _table(["base", "recipe", "runs", *(MEASURES[name].title for name in study.columns)], lines)


def _spread(name: str, found: Sequence[Bounds]) -> str:
    """Mean ± standard deviation over seeds; of rollouts the median, with how many runs got there."""
    if not found:
        return "–"
    kind = MEASURES[name].kind
    if kind == "ratio":
        middle, reached = median(value.high for value in found), sum(math.isfinite(value.high) for value in found)
        return (f"{middle:,.0f}" if math.isfinite(middle) else "never") + f" ({reached}/{len(found)})"
    scale, form = (100, ".1f") if kind == "percent" else (1, ".3g")
    numbers = [scale * value.low for value in found]
    return f"{mean(numbers):{form}}" + (f" ± {stdev(numbers):{form}}" if len(numbers) > 1 else "")


def _line(one: Judged) -> list[str]:
    test, kind = one.test, MEASURES[one.test.measure].kind
    by_base = [f"{base.removeprefix(test.setting + '-')} {_with_t(own, kind)}" for base, own in one.by_base.items()]
    claimed = test.expected if test.expected != "no worse" else f"no worse than {_value(-test.margin, kind)}"
    outcome = one.outcome + (f" ({one.why})" if one.why else "") + ("" if test.decides else " (told only)")
    t = "–" if one.found is None or one.found.t is None else f"{one.found.t:+.1f}"
    return [test.what, MEASURES[test.measure].title, claimed, _with_interval(one.found, one.interval, kind), t, "; ".join(by_base), outcome]


def _with_t(found: Paired | None, kind: str) -> str:
    if found is None:
        return "–"
    return _middle(found, kind) + ("" if found.t is None else f" (t {found.t:+.1f})")


def _middle(found: Paired, kind: str) -> str:
    """One number, or the two that it lies between."""
    if found.exact:
        return _value(found.low, kind)
    return f"{_value(found.low, kind)} to {_value(found.high, kind)}"


def _with_interval(found: Paired | None, interval: Bounds | None, kind: str) -> str:
    if found is None or interval is None:
        return "–"
    return f"{_middle(found, kind)} [{_value(interval.low, kind)}, {_value(interval.high, kind)}]"


def _value(value: float, kind: str) -> str:
    if kind == "ratio":
        return "×∞" if value == math.inf else f"×{math.exp(value):.2f}" if value > -math.inf else "×0"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{100 * value:+.1f}" if kind == "percent" else f"{value:+.3g}"


def _range(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}" if seeds else "none"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}", *(f"| {' | '.join(line)} |" for line in lines)]
