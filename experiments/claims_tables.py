"""Tables of `cancellation_claims.py`: mean and spread over seeds, and differences of arms seed by seed."""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

Rows = list[dict[str, Any]]


def told(rows: Rows, key: str) -> str:
    """Mean ± standard deviation over seeds."""
    values = [row[key] for row in rows if row.get(key) is not None]
    if not values:
        return "–"
    return f"{mean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def paired(one: Rows, two: Rows, key: str, other_key: str | None = None) -> str:
    """Difference of two arms, or of two numbers, seed by seed, with its t."""
    other = {row["seed"]: row[other_key or key] for row in two if row.get(key) is not None}
    gaps = [row[key] - other[row["seed"]] for row in one if row.get(key) is not None]
    if len(gaps) < 2:
        return "–"
    error = stdev(gaps) / math.sqrt(len(gaps))
    return f"{mean(gaps):+.3f} (t {mean(gaps) / error:.1f})" if error else f"{mean(gaps):+.3f}"


def print_table(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    print(f"\n### {title}\n\n| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def print_tables(rows: Rows) -> None:
    by_arm: dict[tuple[str, int, str], Rows] = defaultdict(list)
    for row in rows:
        by_arm[row["base"], row["start"], row["arm"]].append(row)
    runs = {(base, start + 1): found for (base, start, arm), found in sorted(by_arm.items()) if arm == "run"}
    flips(runs)
    coupling(runs)
    value({(base, start): found for (base, start, arm), found in sorted(by_arm.items()) if arm == "shuffled"})
    cancellation(by_arm)
    movement(by_arm)


def flips(runs: dict[tuple[str, int], Rows]) -> None:
    columns = {
        "rise, A > 0": "flips/positive/boosted",
        "rise, A < 0": "flips/negative/boosted",
        "p < 0.5: rise, A > 0": "flips/unsure/positive/boosted",
        "p < 0.5: rise, A < 0": "flips/unsure/negative/boosted",
        "predicted, first": "correlation/first",
        "predicted, step": "correlation/step",
    }
    lines = [[base, str(step), *(told(found, key) for key in columns.values())] for (base, step), found in runs.items()]
    print_table("Flips: share of tokens whose log-prob rises in a training step", ["base", "training step", *columns], lines)


def coupling(runs: dict[tuple[str, int], Rows]) -> None:
    columns = {"same token": "same", "same, both p < 0.5": "same unsure", "different, both p < 0.5": "different unsure"}
    lines = [
        [
            base,
            str(step),
            *(f"{told(found, f'coupling/{key}/pairs')}; {told(found, f'coupling/{key}/coupling')}" for key in columns.values()),
        ]
        for (base, step), found in runs.items()
    ]
    print_table("Coupling: share of pairs; share of all |K|", ["base", "training step", *columns], lines)


def value(starts: dict[tuple[str, int], Rows]) -> None:
    columns = [f"{side}/{kind}" for side in ("positive", "negative") for kind in ("value", "gain")]

    def cell(found: Rows, column: str) -> str:
        above = sum((row[f"value/{column}/low"] or -1) > 0 for row in found)
        return f"{told(found, f'value/{column}/difference')}; {above} of {len(found)}"

    lines = [[base, str(start), *(cell(found, column) for column in columns)] for (base, start), found in starts.items()]
    title = "Value: boosted less suppressed tokens, by side; how many seeds have an interval above 0"
    print_table(title, ["base", "start", *columns], lines)


def cancellation(by_arm: dict[tuple[str, int, str], Rows]) -> None:
    lines = [
        [
            base,
            str(start),
            arm,
            *(told(found, f"cancelled/mini/{part}") for part in ("all", "format", "decisive")),
            told(found, "cancelled/batch/format"),
            paired(found, by_arm[base, start, "query-preserved"], "cancelled/mini/format"),
            paired(found, by_arm[base, start, "query-preserved"], "cancelled/mini/decisive"),
        ]
        for (base, start, arm), found in sorted(by_arm.items())
        if arm in ("shuffled", "query-preserved", "stratified")
    ]
    header = ["all", "format", "decisive", "format, whole batch", "format, less query-preserved", "decisive, less query-preserved"]
    print_table("Cancellation: share that cancels within the own optimizer step", ["base", "start", "batching", *header], lines)


def movement(by_arm: dict[tuple[str, int, str], Rows]) -> None:
    lines = []
    for (base, start, arm), alone in sorted(by_arm.items()):
        if arm != "positive-only" or "moved/kl/format" not in alone[0]:
            continue
        both = by_arm[base, start, "shuffled"]
        kl = (cell for part in ("format", "decisive") for cell in (told(both, f"moved/kl/{part}"), told(alone, f"moved/kl/{part}")))
        gaps = (paired(both, alone, f"moved/kl/{part}") for part in ("format", "decisive"))
        net, positive = "effect/net/format", "effect/positive/format"
        lines.append([base, str(start), *kl, *gaps, told(both, positive), told(both, net), paired(both, both, net, positive)])
    header = ["format: both sides", "format: positive-only", "decisive: both sides", "decisive: positive-only"]
    header += ["format, difference", "decisive, difference", "format in |D+|", "format in |D+ + D-|", "difference"]
    print_table("Movement: share of KL moved, both sides against positive-only", ["base", "start", *header], lines)
