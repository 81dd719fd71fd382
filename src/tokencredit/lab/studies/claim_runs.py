"""What a claim consists of, the settings it is tested under, the runs it needs, one row per finished run, and the rule that judges it.

Everything that decides a verdict is declared before anything is trained.

A test is judged by the 95 % t interval of its contrast, computed seed by seed within each base and averaged over bases (by the bootstrap
interval where a run never reached the threshold, since then there is no t). A claim is "reproduced here" if every deciding test comes out
as claimed, "not testable here" if one of them could not be computed, and "not reproduced here" otherwise. "The other way round" means that
the interval excludes what is claimed; "not told apart" means that it does not: there is no significant difference.
"""

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from tokencredit.commands.flags import parse_train
from tokencredit.config.resolve import to_toml
from tokencredit.config.train import TrainConfig
from tokencredit.lab.compare.design import PlannedRun, make_arm, make_design, read_recipes, reported_runs
from tokencredit.lab.compare.pairs import accuracy_at, common_horizon, values
from tokencredit.lab.compare.results import Code, Row, inspect_run
from tokencredit.lab.compare.statistics import Bounds, Paired, paired
from tokencredit.models import anchored, pinned_name
from tokencredit.storage.run_dir import RunDir

Expected = Literal["more", "less", "no worse"]
"""The interval of the contrast lies above 0, below 0, or above minus the margin."""


class Setting(NamedTuple):
    """Conditions that all recipes of a comparison share."""

    name: str
    flags: str
    """As for `tokencredit train`."""
    models: tuple[str, ...]
    seconds: float
    """Of one core for one run, roughly: for planning only."""


class Test(NamedTuple):
    """One number with a direction: a weighted sum of a measure over recipes, seed by seed."""

    what: str
    setting: str
    weights: dict[str, float]
    """Recipe, as `tokencredit compare` writes it -> weight; +1 and -1 are a plain difference."""
    measure: str
    expected: Expected
    decides: bool = True
    """False: reported, but not part of the verdict."""
    margin: float = 0.0
    """For "no worse"."""


class Claim(NamedTuple):
    said: str
    """What the paper says, in our words."""
    reproduced_if: str
    refuted_if: str
    tests: tuple[Test, ...]


class Study(NamedTuple):
    """Claims of one paper, reported together from the same runs."""

    name: str
    paper: str
    arms: dict[str, tuple[str, ...]]
    """Setting -> recipes."""
    columns: tuple[str, ...]
    """Measures reported per recipe."""
    claims: tuple[Claim, ...]
    names: Mapping[str, str] = MappingProxyType({})
    """Short names of recipes for the tables."""
    remarks: tuple[str, ...] = ()
    not_testable: tuple[str, ...] = ()
    """What of the paper cannot be tested here, and why."""
    threshold: float = 0.8
    """Held-out accuracy that rollouts are counted to."""


def against(
    what: str, setting: str, recipe: str, other: str, measure: str, expected: Expected, *, decides: bool = True, margin: float = 0.0
) -> Test:
    """Recipe minus other."""
    return Test(what, setting, {recipe: 1.0, other: -1.0}, measure, expected, decides, margin)


BOTH = ("steps-shift", "steps-sharpen")
COMMON = "--sampling.group-size 8 --evaluation.final-problems 256 --evaluation.problems 256"
"""Groups for all, those that are made for one response included, unless an arm says otherwise."""

SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("plain", f"--steps 48 --optimizer.learning-rate 5e-4 --evaluation.every 4 {COMMON}", BOTH, 28),
        # Four optimizer steps of 32 prompts each. As many rollouts as a third more plain steps, in a third of the optimizer steps, each of
        # four times the rollouts: at 5e-4 nothing would have been learned by the end, so the rate grows with the square root.
        Setting(
            "many-prompts",
            f"--steps 16 --sampling.prompts 128 --optimizer.learning-rate 1e-3 --evaluation.every 2 {COMMON}",
            BOTH,
            36,
        ),
        # Eight optimizer steps on every batch, of eight whole groups each, as in `plain`, and as many rollouts in all.
        Setting(
            "off-policy",
            "--steps 24 --sampling.prompts 64 --optimizer.steps-per-batch 8 --batching.type query-preserved "
            f"--optimizer.learning-rate 5e-4 --evaluation.every 2 --diagnose.every 4 {COMMON}",
            BOTH,
            42,
        ),
        Setting("looked-at", f"--steps 48 --optimizer.learning-rate 5e-4 --evaluation.every 4 --diagnose.every 8 {COMMON}", BOTH, 38),
        # The rate is that of the task's preset.
        Setting("multi-turn", f"--task guess --steps 60 --optimizer.learning-rate 1e-3 --evaluation.every 5 {COMMON}", ("guess",), 38),
        Setting("revisions", f"--steps 32 --optimizer.learning-rate 5e-4 --evaluation.every 2 {COMMON}", ("steps-revise",), 25),
    )
}


CHEAP = "--diagnose.every 0 --tokens-every 0 --save-every 0 --threads 1"
"""Defaults of all runs: no microscope, no saved tokens. Settings with microscope observations override them."""


def place(setting: str, model: str) -> str:
    """The name under which runs of a setting from one base are paired."""
    return f"{setting}-{model}"


def needed_runs(studies: Iterable[Study], *, seeds: int, first_seed: int, flags: str) -> list[PlannedRun]:
    """Seed by seed, so that whatever is finished first can be compared; long settings first."""
    found: dict[tuple[object, ...], PlannedRun] = {}
    for study in studies:
        for setting, recipes in study.arms.items():
            for run in _runs(setting, recipes, seeds=seeds, first_seed=first_seed, flags=flags):
                found.setdefault(run.key, run)
    return sorted(found.values(), key=lambda run: (run.seed, -seconds_of(run)))


def belongs(run_base: str, recipe: str, study: Study) -> bool:
    return any(
        recipe in recipes and run_base == place(setting, model)
        for setting, recipes in study.arms.items()
        for model in SETTINGS[setting].models
    )


def seconds_of(run: PlannedRun) -> float:
    return next(one.seconds for one in SETTINGS.values() if run.base in (place(one.name, model) for model in one.models))


@cache
def digest(run: PlannedRun) -> str:
    """Of everything that is trained."""
    return hashlib.sha256(to_toml(run.config).encode()).hexdigest()[:16]


def _runs(setting: str, recipes: Sequence[str], *, seeds: int, first_seed: int, flags: str) -> list[PlannedRun]:
    held = SETTINGS[setting]

    def configure(recipe: str) -> TrainConfig:
        return anchored(parse_train([*shlex.split(f"{CHEAP} {held.flags} {flags}"), "--recipe", recipe]).config)

    arms = [make_arm(wanted, configure) for wanted in read_recipes(",".join(recipes))]
    bases = {place(setting, model): pinned_name(model) for model in held.models}
    design = make_design(arms, recipes[0], bases, seeds=seeds, first_seed=first_seed, rates=(), tune_seeds=1)
    return reported_runs(design, {})


FORMAT, DECISIVE = ("preamble", "separator"), ("result",)
"""Token classes of `steps`: free choices, and the digits that are right or wrong."""


def harvest(run: PlannedRun, runs: Path, code: Code, *, any_code: bool = False) -> Row | None:
    """None where the run is missing, half-written, or of other settings; or of other code, unless any will do."""
    folder = runs / run.path
    found = inspect_run(folder, run, code)
    if found.row is None or (found.state != "done" and not any_code):
        return None
    metrics = RunDir(folder).read("metrics.jsonl")
    looks = [seen_of(json.loads(file.read_text(encoding="utf-8"))) for file in sorted((folder / "findings").glob("step-*.json"))]
    evaluated = [row for row in metrics if "held_out/sampled" in row]
    return {
        **found.row,
        "config": digest(run),
        "mean_entropy": known_mean(row.get("entropy") for row in metrics),
        "silenced": known_mean(row.get("silenced_share") for row in metrics),
        "pass_at_4": known_mean(row["held_out/pass_at_k"] for row in evaluated),
        "jitter": jitter([row["held_out/sampled"] for row in evaluated]),
        "looks": looks,
    }


def known_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return mean(known) if known else None


def jitter(curve: Sequence[float]) -> float | None:
    """Mean |second difference| of held-out accuracy from evaluation to evaluation: a reading of the paper's Jitter_2."""
    bends = [abs(left - 2 * middle + right) for left, middle, right in zip(curve, curve[1:], curve[2:], strict=False)]
    return mean(bends) if bends else None


def seen_of(written: Mapping[str, Any]) -> dict[str, float | None]:
    """Tax, drift and the location of the update, from one microscope observation."""
    found = {finding["name"]: finding for finding in written["findings"]}
    tax, drift = found["tax"]["numbers"], found["drift"]["numbers"]
    shares = {row["token_class"]: row["kl_share"] for row in found["tax"]["tables"]["by_class"]}
    return {
        "step": written["step"],
        "tax_format": tax.get("format/kl"),
        "tax_any": tax["any/kl"],
        "moved": tax["kl/mean"],
        "drift_ratio": drift["ratio"],
        "drift_equal": drift["equal/absolute"],
        "moved_format": known_sum(shares, FORMAT),
        "moved_decisive": known_sum(shares, DECISIVE),
    }


def known_sum(shares: Mapping[str, float | None], classes: Iterable[str]) -> float | None:
    found = [shares[name] for name in classes if name in shares]
    known = [share for share in found if share is not None]
    return sum(known) if known and len(known) == len(found) else None


class Measure(NamedTuple):
    title: str
    kind: str
    """percent: shown in points; ratio: a log ratio, shown as a factor; number: as it is."""


MEASURES: dict[str, Measure] = {
    "area": Measure("curve area", "percent"),
    "final": Measure("final accuracy", "percent"),
    "equal_rollouts": Measure("accuracy at equal rollouts", "percent"),
    "pass_at_k": Measure("pass@k after", "percent"),
    "pass_at_4": Measure("pass@4, mean over the run", "percent"),
    "to_threshold": Measure("rollouts to threshold", "ratio"),
    "rollouts": Measure("rollouts", "ratio"),
    "entropy": Measure("end entropy", "number"),
    "mean_entropy": Measure("mean entropy", "number"),
    "jitter": Measure("jitter", "percent"),
    "silenced": Measure("tokens silenced", "percent"),
    "tax_format": Measure("tax, format", "percent"),
    "tax_any": Measure("tax, any", "percent"),
    "moved": Measure("KL moved per token", "number"),
    "drift_ratio": Measure("drift ratio", "number"),
    "drift_equal": Measure("drift, nats", "number"),
    "moved_format": Measure("KL on format", "percent"),
    "moved_decisive": Measure("KL on decisive", "percent"),
    "first_moved_format": Measure("KL on format, first look", "percent"),
    "first_moved_decisive": Measure("KL on decisive, first look", "percent"),
}
CEILING = {"final", "pass_at_k", "pass_at_4", "equal_rollouts"}
"""Shares of solved problems; they are not testable if all arms reach the ceiling."""
OF_ROWS = {"mean_entropy", "silenced", "pass_at_4", "jitter"}
OF_LOOKS = {"tax_format", "tax_any", "moved", "drift_ratio", "drift_equal", "moved_format", "moved_decisive"}
FIRST = "first_"


def measured(name: str, row: Row, *, horizon: float, threshold: float) -> Bounds | None:
    """None where the run has no such number."""
    if name in OF_ROWS:
        return _point(row[name])
    if name in OF_LOOKS:
        return _point(known_mean(look[name] for look in row["looks"]))
    if name.startswith(FIRST):
        first: Mapping[str, float | None] = next(iter(row["looks"]), {})
        return _point(first.get(name.removeprefix(FIRST)))
    if name == "equal_rollouts":
        return _point(accuracy_at(row["curve"], horizon))
    found = values(name, row, horizon=horizon, threshold=threshold)
    return None if math.isnan(found.low) else found


def _point(value: float | None) -> Bounds | None:
    return None if value is None or math.isnan(value) else Bounds(value, value)


Outcome = Literal["as claimed", "the other way round", "not told apart", "not testable"]
Verdict = Literal["reproduced here", "not reproduced here", "not testable here"]
TOP = 0.99


class Judged(NamedTuple):
    test: Test
    found: Paired | None
    by_base: dict[str, Paired | None]
    outcome: Outcome
    why: str = ""

    @property
    def interval(self) -> Bounds | None:
        return None if self.found is None else interval_of(self.found)


def interval_of(found: Paired) -> Bounds:
    return found.intervals.t or found.intervals.bootstrap


def outcome_of(interval: Bounds, expected: Expected, margin: float = 0.0) -> Outcome:
    """Where the interval lies: on the claimed side, on the other, or across the border between them."""
    low, high = (-interval.high, -interval.low) if expected == "less" else interval
    border = -margin if expected == "no worse" else 0.0
    if low > border:
        return "as claimed"
    return "the other way round" if high < border else "not told apart"


def verdict(outcomes: Sequence[Outcome]) -> Verdict:
    """Of the deciding tests of a claim."""
    if not outcomes or "not testable" in outcomes:
        return "not testable here"
    return "reproduced here" if set(outcomes) == {"as claimed"} else "not reproduced here"


def contrast(weights: Mapping[str, float], found: Mapping[str, Bounds], *, ratio: bool) -> Bounds | None:
    """The weighted sum as an interval; of logs for a ratio. None where a recipe has no number."""
    if any(recipe not in found for recipe in weights) or (ratio and any(found[recipe].low <= 0 for recipe in weights)):
        return None
    low = high = 0.0
    for recipe, weight in weights.items():
        ends = [math.log(end) if ratio and math.isfinite(end) else end for end in found[recipe]]
        small, large = (weight * end for end in (ends if weight > 0 else reversed(ends)))
        low, high = low + small, high + large
    return Bounds(low, high)


def judge(test: Test, rows: Sequence[Row], study: Study) -> Judged:
    places = [place(test.setting, model) for model in SETTINGS[test.setting].models]
    strata = {base: strata_of(test, [row for row in rows if row["base"] == base], study) for base in places}
    by_base = {base: paired([own]) if len(own) > 1 else None for base, own in strata.items()}
    if any(one is None for one in by_base.values()):
        return Judged(test, None, by_base, "not testable", "fewer than two pairs")
    found = paired(list(strata.values()))
    assert found is not None
    if test.measure in CEILING and at_top(test, rows, places, study):
        return Judged(test, found, by_base, "not testable", f"all above {TOP:.0%}")
    if math.isinf(found.low) and math.isinf(found.high):
        return Judged(test, found, by_base, "not testable", "too few runs got there")
    return Judged(test, found, by_base, outcome_of(interval_of(found), test.expected, test.margin))


def judge_claim(claim: Claim, rows: Sequence[Row], study: Study) -> tuple[list[Judged], Verdict]:
    judged = [judge(test, rows, study) for test in claim.tests]
    return judged, verdict([one.outcome for one in judged if one.test.decides])


def horizon_of(rows: Sequence[Row], study: Study, setting: str) -> float:
    """Rollouts that all runs of the study cover from this base."""
    return common_horizon([row["curve"] for row in rows if row["recipe"] in study.arms[setting]])


def strata_of(test: Test, rows: Sequence[Row], study: Study) -> list[Bounds]:
    """One contrast per seed that has all its runs."""
    if not rows:
        return []
    horizon, ratio = horizon_of(rows, study, test.setting), MEASURES[test.measure].kind == "ratio"
    by_seed: dict[int, dict[str, Bounds]] = {}
    for row in rows:
        value = measured(test.measure, row, horizon=horizon, threshold=study.threshold)
        if row["recipe"] in test.weights and value is not None:
            by_seed.setdefault(row["seed"], {})[row["recipe"]] = value
    contrasts = (contrast(test.weights, found, ratio=ratio) for _, found in sorted(by_seed.items()))
    return [one for one in contrasts if one is not None]


def at_top(test: Test, rows: Sequence[Row], places: Sequence[str], study: Study) -> bool:
    """Every run that is compared has solved next to everything."""
    chosen = [row for row in rows if row["base"] in places and row["recipe"] in test.weights]
    found = [measured(test.measure, row, horizon=horizon_of([row], study, test.setting), threshold=study.threshold) for row in chosen]
    return all(value is not None and value.low > TOP for value in found)
