"""Many damaged inputs of every kind, with a table of what became of them.

    PYTHONPATH=tests python -m fault.fuzz_soak --count 2000 --seed 0 --out fuzz.json

A failure is repeated with --kind KIND --seed SEED --count 1.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from fault.fuzz import Outcome, Trial, judge
from fault.fuzz_config import KINDS as CONFIG
from fault.fuzz_models import KINDS as MODELS
from fault.fuzz_rollouts import KINDS as ROLLOUTS
from fault.fuzz_runs import KINDS as RUNS
from fault.fuzz_tasks import KINDS as TASKS

Kind = Callable[[Random, Path], Trial]
KINDS: dict[str, Kind] = {**CONFIG, **ROLLOUTS, **RUNS, **TASKS, **MODELS}


def one(kind: Kind, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        return judge(kind(Random(seed), place), place)


def soak(kinds: Mapping[str, tuple[Kind, int]], seed: int, tell: Callable[[str], None] = print) -> dict[str, dict[str, object]]:
    """Kind -> counts, seconds, and the seed and words of every failure."""
    table: dict[str, dict[str, object]] = {}
    for name, (kind, count) in kinds.items():
        counts: Counter[str] = Counter(refused=0, ran=0, unhandled=0)
        failures: list[dict[str, object]] = []
        began = time.monotonic()
        for number in range(seed, seed + count):
            outcome = one(kind, number)
            counts[outcome.kind] += 1
            if outcome.kind == "unhandled":
                failures.append({"seed": number, "said": outcome.said})
                tell(f"  {name}, seed {number}: {outcome.said}")
        seconds = time.monotonic() - began
        table[name] = {"inputs": count, **counts, "seconds": round(seconds, 1), "failures": failures}
        told = "".join(f"{counts[kind]:>6} {kind}" for kind in ("refused", "ran", "unhandled"))
        tell(f"{name:<28}{count:>6} inputs{told}{seconds:>7.1f} s")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description="feed every reader rubbish")
    parser.add_argument("--count", type=int, default=2000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=sorted(KINDS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = {name: kind for name, kind in KINDS.items() if options.kind in (None, name)}
    each = max(1, options.count // len(chosen))
    table = soak({name: (kind, each) for name, kind in chosen.items()}, options.seed, lambda line: print(line, flush=True))
    total = {key: sum(int(str(row[key])) for row in table.values()) for key in ("inputs", "refused", "ran", "unhandled")}
    print("in all: " + ", ".join(f"{value} {key}" for key, value in total.items()))
    if options.out is not None:
        options.out.write_text(json.dumps({"seed": options.seed, "total": total, "kinds": table}, indent=2) + "\n")
    return 1 if total["unhandled"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
