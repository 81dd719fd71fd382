"""Tables for the terminal from the record of a checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokencredit.lab.speed.workload import Shown
from tokencredit.text import brief

Record = Mapping[str, Any]


def plain(value: float | str | None, digits: int = 2, *, signed: bool = False) -> str:
    """`.35`, `-.03`, `+.12`; a dash if unknown."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return "never" if value == "inf" else value
    return (
        f"{value:{'+' if signed else ''}.{digits}f}".replace("0.", ".", 1)
        if abs(value) < 1
        else f"{value:{'+' if signed else ''}.{digits}f}"
    )


def percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def within(bounds: Record, digits: int = 2) -> str:
    return f"{plain(bounds['value'], digits)} ({plain(bounds['low'], digits)} to {plain(bounds['high'], digits)})"


def gap(found: Record, digits: int = 3) -> str:
    """A paired difference with its t."""
    return f"{plain(found['mean'], digits, signed=True)} ({plain(found['t'], 1)})"


def needed(found: Record) -> str:
    def shown_value(value: float | str | None) -> str:
        return "-" if value is None else "never" if value == "inf" else f"{float(value):,.0f}"

    return f"{shown_value(found['value'])} ({shown_value(found['low'])} to {shown_value(found['high'])})"


def named(name: str, rows: Sequence[Record], field: str) -> str:
    """A method with the methods that are equal to it here."""
    others = [row["method"] for row in rows if row[field] == name]
    return name + (f" = {', '.join(others)}" if others else "")


def tables(record: Record) -> list[Shown]:
    found = [_truth(record), _agreement(record), _classes(record)]
    if "anatomy" in record:
        found.append(_anatomy(record))
    if record["gradient"] is not None:
        found += [_gradients(record, which) for which in ("batches", "groups") if record["gradient"][which] is not None]
    return found


def _truth(record: Record) -> Shown:
    truth = record["truth"]
    above = ", ".join(f"> {limit}: {percent(share)}" for limit, share in truth["share_above"].items())
    rows = [
        (
            name,
            f"{one['tokens']:,}",
            percent(one["share_of_tokens"]),
            percent(one["share_of_square"]),
            plain(one["root_mean_square"], 3),
            percent(one["decisive"]["0.1"]),
        )
        for name, one in sorted(truth["classes"].items(), key=lambda item: -(item[1]["share_of_square"] or 0))
    ]
    return Shown(
        f"{record['model']}: where the true advantage A* is",
        ("class", "tokens", "of all tokens", "of sum A*^2", "rms A*", "|A*| > 0.1"),
        rows,
        (
            f"{truth['rollouts']} rollouts, {truth['prefixes']:,} different prefixes valued by {truth['continuations']:,} continuations; "
            f"sd of the noise of A* {plain(truth['noise_sd'], 3)}, removed; {percent(truth['reliability'])} of A*'s variance is signal.",
            f"Tokens with |A*| {above}. 80 % of sum A*^2 is held by {percent(truth['tokens_holding_80_percent'])} of tokens.",
        ),
    )


def _agreement(record: Record) -> Shown:
    part = record["agreement"]
    rows = [
        (
            named(row["method"], part["rows"], "same_credit_as"),
            within(row["pearson"]),
            within(row["auroc"]),
            percent(row["on_decisive"]["value"], 0),
            percent(row["on_format"]["value"], 0),
            percent(row["same_sign"]["value"], 0),
        )
        for row in part["rows"]
        if row["same_credit_as"] is None
    ]
    return Shown(
        f"{record['model']}: credit and A* on the same rollouts",
        ("method", "Pearson", "AUROC", "on decisive", "on format", "same sign"),
        rows,
        (
            f"Decisive: |A*| > {part['decisive_above']:g}, {part['decisive_tokens']:,} tokens. Intervals of 95 % over prompts. "
            "AUROC ranks tokens by |credit| / |advantage|: entropy alone scores high, and none of this predicts how good a gradient is.",
        ),
    )


def _classes(record: Record) -> Shown:
    part = record["agreement"]["rows"]
    classes = [name for name, _ in sorted(record["truth"]["classes"].items(), key=lambda item: -item[1]["tokens"])]
    shown_value = [row for row in part if row["same_credit_as"] is None and _differs(row)]
    rows = [
        (
            row["method"],
            *(
                f"{plain(row['by_class'][name]['positive'])} / {plain(row['by_class'][name]['negative'])}"
                if name in row["by_class"]
                else "-"
                for name in classes
            ),
        )
        for row in shown_value
    ]
    return Shown(
        f"{record['model']}: mean coefficient (credit / advantage) by token class, responses above / below average",
        ("method", *classes),
        rows,
        ("Unequal sides on tokens that siblings share do not cancel. Methods whose coefficients are all 1 are not shown.",),
    )


def _differs(row: Record) -> bool:
    return any(value is not None and abs(value - 1) > 1e-6 for sides in row["by_class"].values() for value in sides.values())


def _anatomy(record: Record) -> Shown:
    part = record["anatomy"]

    def both(row: Record, kind: str) -> str:
        return " / ".join(percent(row[side][kind]["value"], 0) for side in ("right", "wrong"))

    return Shown(
        f"{record['model']}: where credit goes wrong, in right / wrong responses",
        ("method", "of |credit| on A* near 0", "against A*", "with A*", "of |A*| without credit"),
        [
            (
                named(row["method"], part["rows"], "same_credit_as"),
                *(both(row, kind) for kind in ("undecided", "against", "agreeing", "missed")),
            )
            for row in part["rows"]
            if row["same_credit_as"] is None
        ],
        (
            f"A* near 0: |A*| below {part['standard_errors']:g} of its standard errors. The first three columns are shares of |credit| and "
            "sum to 100 %; the last is the share of |A*|, where it is not near 0, on tokens that received nothing.",
        ),
    )


def _gradients(record: Record, which: str) -> Shown:
    gradient = record["gradient"]
    part = gradient[which]
    rows = [
        (
            named(row["method"], part["rows"], "same_direction_as"),
            plain(row["cosine"], 3),
            gap(row["versus_grpo"]),
            plain(row["mean_cosine_corrected" if which == "batches" else "mean_cosine"]),
            plain(row["snr"], 3),
            gap(row["without_entropy"]["versus_grpo"]),
            plain(row["leaning_on_sharpness"], signed=True),
            "-" if row["versus_uniform_credit"] is None else gap(row["versus_uniform_credit"]),
            needed(row["rollouts_grpo_would_need"]),
        )
        for row in part["rows"]
        if row["same_direction_as"] is None
    ]
    what = (
        f"gradients of {part['batches']} batches of {part['rollouts_per_batch']} rollouts"
        if which == "batches"
        else f"gradients of {part['batches']} single groups of {part['rollouts_per_batch']} rollouts whose truth is known, with the oracle"
    )
    columns = (
        "method",
        "cos g*",
        "vs grpo (t)",
        "cos of mean" if which == "batches" else "cos of all groups",
        "SNR",
        "vs grpo without entropy (t)",
        "to -grad H",
        "vs uniform credit (t)",
    )
    return Shown(
        f"{record['model']}: {what}",
        (*columns, "rollouts grpo would need"),
        rows,
        (
            f"g* from {record['policy']['rollouts']:,} rollouts, its halves at cosine {plain(part['half_half_cosine'], 3)}; "
            f"cos(g*, -grad H) {plain(part['reference_toward_sharpness'])}."
            + (" cos of mean is corrected for noise." if which == "batches" else ""),
            f"{part['compared']} methods were compared with grpo: |t| below {plain(part['surviving_t'], 1)} is not significant after "
            "that many comparisons (Bonferroni, 5 %).",
        ),
    )


def notes(record: Record) -> list[str]:
    said = [
        f"{one['recipe']} is left out of {'everything' if one['part'] == 'all' else one['part']}: {brief(one['why'], 240)}"
        for one in record["left_out"]
    ]
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in record["seconds"].items() if name != "all")
    return [*said, f"{record['model']} took {record['seconds']['all']:.0f} s ({seconds})."]
