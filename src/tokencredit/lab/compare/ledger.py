"""What of a plan is already there, and may be used."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tokencredit.errors import ConfigError
from tokencredit.lab.compare.code import Code
from tokencredit.lab.compare.design import PlannedRun
from tokencredit.lab.compare.results import Row, look

Stale = Literal["refuse", "retrain", "keep"]


class Ledger(NamedTuple):
    rows: list[Row]
    to_do: list[PlannedRun]


def take_stock(runs: Sequence[PlannedRun], out: Path, *, code: Code, stale: Stale) -> Ledger:
    """A finished run of these settings and this code is used, a half-written one is to be done again.

    One that was trained with other settings is refused, or trained again with `retrain`; one of other code may also be kept.
    """
    ledger = Ledger([], [])
    for run in runs:
        found = look(out / run.path, run, code)
        if found.state == "done" or (found.state == "other-code" and stale == "keep"):
            assert found.row is not None
            ledger.rows.append(found.row)
            continue
        if found.state in ("other-settings", "other-code") and stale != "retrain":
            keep = " or use it with --stale keep" if found.state == "other-code" else ""
            raise ConfigError(
                f"{out / run.path} ({run.told}) is finished but cannot be used: {found.why}; name another --out, train it again with "
                f"--stale retrain{',' if keep else ''}{keep}"
            )
        ledger.to_do.append(run)
    return ledger
