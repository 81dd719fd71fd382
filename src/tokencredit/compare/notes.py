"""What a reader must know before believing a table, in sentences."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tokencredit.compare.code import Code, same_code
from tokencredit.compare.rows import Row

FEW_PAIRS = 6
SAME_BUDGET = 0.01


def notes(rows: Sequence[Row], summary: dict[str, Any], told: dict[str, Any]) -> list[str]:
    """`told`: what is known of the comparison beside its rows (recipes, controls, failed, missing, rates, tuning, remarks)."""
    reported = [row for row in rows if not row["tuning"]]
    found = [*_incomplete(told), *_unequal(reported, summary), *_code(rows), *told["remarks"]]
    found += [*_rates(told), *_controls(summary, told), *_chance(summary, told)]
    return found


def _incomplete(told: dict[str, Any]) -> list[str]:
    found = []
    if told["failed"]:
        names = sorted({f"{one['recipe']} on {one['base']} at {one['rate']:g}" for one in told["failed"]})
        found.append(
            f"{len(told['failed'])} runs failed ({'; '.join(names[:6])}): what is compared are the seeds that finished, and a recipe that "
            "breaks on the hard ones looks better than it is."
        )
    if told["missing"]:
        found.append(f"{told['missing']} runs are still missing: these numbers will change.")
    return found


def _unequal(rows: Sequence[Row], summary: dict[str, Any]) -> list[str]:
    found = []
    sets: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        sets.setdefault((row["base"], row["seed"]), set()).add(row["held_out_sha256"])
    if unlike := [f"{base} seed {seed}" for (base, seed), hashes in sets.items() if len(hashes) > 1]:
        found.append(f"Held-out problems differ between the recipes of {', '.join(unlike[:4])}: these are no pairs.")
    for base, horizon in summary["horizons"].items():
        longest = max(row["rollouts"] for row in rows if row["base"] == base)
        if longest > horizon * (1 + SAME_BUDGET):
            found.append(
                f"On {base} recipes used different numbers of rollouts; the curve area is over the first {horizon:,.0f}, which all "
                "cover, but final accuracy, greedy and pass@k are those at each one's own end."
            )
    return found


def _code(rows: Sequence[Row]) -> list[str]:
    found = []
    codes = {Code(row["commit"], row["uncommitted"]) for row in rows}
    if not all(same_code(one, other) for one, other in pairwise(codes)):
        found.append("Runs were trained by different code: a difference may be one of the code. The JSON has the commit of each.")
    if any(code.uncommitted for code in codes):
        found.append("Some runs were trained with uncommitted changes to the package: nobody else can do this again.")
    if len({tuple(row["versions"].items()) for row in rows}) > 1:
        found.append("Runs were trained under different versions of Python or its packages; the JSON has them for each.")
    return found


def _rates(told: dict[str, Any]) -> list[str]:
    if len(told["rates"]) < 2:
        return [
            "The learning rate was not tuned. A change of rate can outweigh every method, and token weights change the effective step: "
            "give --rates several values before believing a difference."
        ]
    edge = [f"{one['recipe']} on {one['base']} ({one['best']:g})" for one in told["tuning"] if one["best"] is not None and one["at_edge"]]
    if not edge:
        return []
    return [f"The best rate is the smallest or largest that was tried for {', '.join(edge)}: a better one may lie beyond."]


def _controls(summary: dict[str, Any], told: dict[str, Any]) -> list[str]:
    if not told["controls"]:
        return ["No A/A control takes part: add random-lambda, whose differences show what chance alone does here."]
    found = []
    for one in summary["comparisons"]:
        t = one["overall"]["area"]["t"] if one["control"] else None
        if t is not None and abs(t) > 2:
            found.append(f"The A/A control {one['recipe']} itself differs (curve area, t {t:+.1f}): distrust effects of that size.")
    return found


def _chance(summary: dict[str, Any], told: dict[str, Any]) -> list[str]:
    claims = [one for one in summary["comparisons"] if not one["control"]]
    found = []
    if len(claims) > 1 and (limit := claims[0]["overall"]["area"]["bonferroni_t"]) is not None:
        beyond = [one["recipe"] for one in claims if (t := one["overall"]["area"]["t"]) is not None and abs(t) > limit]
        found.append(
            f"{len(claims)} recipes are compared with {told['reference']}: one of them beyond |t| {limit:.1f} is as rare by chance as one "
            f"alone beyond its 5 % limit (Bonferroni). By curve area: {', '.join(beyond) or 'none'}."
        )
    pairs = [one["pairs"] for one in summary["comparisons"] if one["pairs"]]
    if pairs and min(pairs) < FEW_PAIRS:
        found.append(f"Few pairs ({min(pairs)}): a bootstrap interval is then too narrow. The t interval in the JSON is wider.")
    return found
