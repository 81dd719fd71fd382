"""The curves of a run: series of (step, value), each with a sentence as text alternative."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tokencredit.report.format import hundreds
from tokencredit.report.run_reader import Run
from tokencredit.report.token_view import number
from tokencredit.stats import wilson

MOST_POINTS = 400
"""Points of a series on the page."""


class Point(NamedTuple):
    step: int
    value: float
    low: float | None = None
    high: float | None = None


class Series(NamedTuple):
    label: str
    points: tuple[Point, ...]


class Curve(NamedTuple):
    title: str
    caption: str
    percent: bool
    series: tuple[Series, ...]
    stacked: bool = False

    @property
    def sentence(self) -> str:
        """The text alternative: first, last, lowest and highest value of each series."""
        return f"{self.title}. " + " ".join(self._describe(series) for series in self.series)

    def _describe(self, series: Series) -> str:
        first, last = series.points[0], series.points[-1]
        values = [point.value for point in series.points]
        name = f"{series.label}: " if series.label else ""
        return (
            f"{name}{self.figure(first.value)} at step {first.step}, {self.figure(last.value)} at step {last.step}; "
            f"lowest {self.figure(min(values))}, highest {self.figure(max(values))}."
        )

    def figure(self, value: float) -> str:
        return f"{hundreds(value)} %" if self.percent else f"{value:.3g}"


MEASURED = (
    ("score", "Training score", "mean score of the batch, before reward shaping", False),
    ("reward", "Reward", "mean of the batch, after reward shaping", False),
    ("entropy", "Entropy", "nats per token, before the update", False),
    ("completions/mean_length", "Response length", "tokens, mean of the batch", False),
    ("frac_reward_zero_std", "Dead groups", "share of prompts with equal rewards, which teach nothing", True),
    ("ungraded", "Ungraded responses", "responses per batch without a score", False),
    ("unscored_tokens", "Unscored tokens", "tokens per batch without a sampler log-prob, left out of the loss", False),
    ("completions/clipped_ratio", "Truncated responses", "share of responses that reached the length limit", True),
    ("silenced_share", "Clip fraction", "share of credited tokens whose gradient the objective silenced", True),
    ("prompts_per_optimizer_step", "Prompts per optimizer step", "mean over the optimizer steps of the batch", False),
    ("kl", "KL to the reference", "nats per token", False),
)
"""Key in metrics.jsonl, title, caption, whether the value is a share."""


OF_GROUPS = ("frac_reward_zero_std",)
"""Metrics that mean nothing if each prompt has one response."""

SETTINGS_OF_PLAN = ("prompts_per_optimizer_step",)
"""Metrics that the configuration usually fixes: shown only if they change during a run or differ between runs."""


def _has_groups(run: Run) -> bool:
    sampling = run.config.get("sampling")
    return not (isinstance(sampling, dict) and sampling.get("group_size") == 1)


def curves(runs: Sequence[Run]) -> list[Curve]:
    """The curves with at least two points in some run.

    Left out: a metric that is zero throughout, a reward that equals the score, group metrics of a run without groups, and a metric of
    SETTINGS_OF_PLAN that is constant.
    """
    labels = [run.name for run in runs] if len(runs) > 1 else [""]
    found = [
        Curve(f"Held-out accuracy, {kind}", caption + _problems(runs), True, _series(labels, [_held_out(run, kind) for run in runs]))
        for kind, caption in (("greedy", "greedy decoding; band: 95 % interval"), ("sampled", "pass@1; band: 95 % interval"))
    ]
    for key, title, caption, percent in MEASURED:
        series = _series(labels, [_measured(run, key) for run in runs])
        values = {point.value for one in series for point in one.points}
        repeats = key == "reward" and found[-1].title == "Training score" and found[-1].series == series
        if values - {0} and not repeats and not (key in SETTINGS_OF_PLAN and len(values) == 1):
            found.append(Curve(title, caption, percent, series))
    found.append(_stage_seconds(runs[0]) if len(runs) == 1 else _total_seconds(labels, runs))
    return [curve for curve in found if any(len(series.points) > 1 for series in curve.series)]


def _series(labels: Sequence[str], points: Sequence[list[Point]]) -> tuple[Series, ...]:
    return tuple(Series(label, tuple(thinned(one))) for label, one in zip(labels, points, strict=True) if one)


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most MOST_POINTS points, evenly spaced, including both ends."""
    last = len(points) - 1
    if last < MOST_POINTS:
        return list(points)
    return [points[round(index * last / (MOST_POINTS - 1))] for index in range(MOST_POINTS)]


def _measured(run: Run, key: str) -> list[Point]:
    if key in OF_GROUPS and not _has_groups(run):
        return []
    return [Point(row["step"], value) for row in run.metrics if (value := number(row.get(key))) is not None]


def _held_out(run: Run, kind: str) -> list[Point]:
    """Evaluations before, during and after the run. At the last step, the larger final evaluation replaces the periodic one."""

    def point(step: int, row: dict[str, Any], prefix: str) -> list[Point]:
        value, problems = number(row.get(f"{prefix}{kind}")), number(row.get(f"{prefix}problems"))
        if value is None or not 0 <= value <= 1:
            return []
        return [Point(step, value, *(wilson(value, int(problems)) if problems and problems >= 1 else ()))]

    found = {row["step"]: point(row["step"], row, "held_out/") for row in run.metrics}
    last = run.metrics[-1]["step"] if run.metrics else None
    for when, step in (("before", 0), ("after", last)):
        ends = run.evaluated(when)
        if step is not None and ends:
            found[step] = point(step, ends, "")
    return [one for step in sorted(found) for one in found[step]]


def _problems(runs: Sequence[Run]) -> str:
    """The number of problems per point, for the caption. The evaluations in result.json (both ends) may use more than those between."""
    ends = {int(count) for run in runs for when in ("before", "after") if (count := number(run.evaluated(when).get("problems")))}
    along = {int(count) for run in runs for row in run.metrics if (count := number(row.get("held_out/problems")))}

    def listed(counts: set[int]) -> str:
        return " or ".join(map(str, sorted(counts)))

    if ends and along and ends != along:
        return f"; first and last point: {listed(ends)} problems, between: {listed(along)}"
    return f"; {listed(ends | along)} problems" if ends | along else ""


def _seconds(row: dict[str, Any]) -> dict[str, float]:
    seconds = row.get("seconds")
    found = seconds if isinstance(seconds, dict) else {}
    return {stage: value for stage, took in found.items() if (value := number(took)) is not None}


def _stage_seconds(run: Run) -> Curve:
    """Seconds of the three longest stages, and of all other stages together."""
    total: dict[str, float] = {}
    for row in run.timing:
        for stage, value in _seconds(row).items():
            total[stage] = total.get(stage, 0.0) + value
    largest = sorted(total, key=lambda stage: -total[stage])[:3]
    names = [*largest, "other stages"] if len(total) > 3 else largest
    points: dict[str, list[Point]] = {name: [] for name in names}
    for row in run.timing:
        seconds = _seconds(row)
        for stage in largest:
            points[stage].append(Point(row["step"], seconds.get(stage, 0.0)))
        if len(total) > 3:
            points["other stages"].append(Point(row["step"], sum(value for stage, value in seconds.items() if stage not in largest)))
    series = tuple(Series(name, tuple(thinned(points[name]))) for name in names)
    return Curve("Seconds per step", "wall clock, by stage", False, series, stacked=True)


def _total_seconds(labels: Sequence[str], runs: Sequence[Run]) -> Curve:
    points = [[Point(row["step"], sum(_seconds(row).values())) for row in run.timing] for run in runs]
    return Curve("Seconds per step", "wall clock, all stages", False, _series(labels, points))
