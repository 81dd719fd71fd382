"""A finished run -> one row: what `tokencredit compare` keeps of it, and what claims need beside that."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from claims.planning import digest
from tokencredit.lab.compare.design import PlannedRun
from tokencredit.lab.compare.results import Code, Row, look
from tokencredit.storage.run_dir import RunDir

FORMAT, DECISIVE = ("preamble", "separator"), ("result",)
"""Token classes of `steps`: free choices, and the digits that are right or wrong."""


def harvest(run: PlannedRun, runs: Path, code: Code, *, any_code: bool = False) -> Row | None:
    """None where the run is missing, half-written, or of other settings; or of other code, unless any will do."""
    folder = runs / run.path
    found = look(folder, run, code)
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
    """What one look through the microscope says of tax, drift and where the update went."""
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
        "moved_format": total(shares, FORMAT),
        "moved_decisive": total(shares, DECISIVE),
    }


def total(shares: Mapping[str, float | None], classes: Iterable[str]) -> float | None:
    found = [shares[name] for name in classes if name in shares]
    known = [share for share in found if share is not None]
    return sum(known) if known and len(known) == len(found) else None
