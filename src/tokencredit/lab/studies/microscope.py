"""The cancellation paper's claims that the microscope can test, on our own bases and on a language model.

Commands: `cancellation`, `real-model`.
"""

import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import mean, stdev
from typing import Any

import torch

from tokencredit.lab.studies import parser_of, run_command
from tokencredit.policy.policy import Policy, choose_device, load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample
from tokencredit.rollout_io.write import rollout_rows, write_rows
from tokencredit.storage.run_dir import describe_environment

BASES = {"steps-shift": "", "steps-sharpen": "--model steps-sharpen", "cotadd": "--task.type cotadd"}
ARMS = {
    "shuffled": "--recipe dapo",
    "query-preserved": "--recipe dapo --batching.type query-preserved",
    "stratified": "--recipe dapo --batching.type stratified",
    "positive-only": "--recipe positive-only",
}
NO_EVALUATION = "--evaluation.every 0 --evaluation.final-problems 1 --evaluation.final-samples 1 --evaluation.problems 1"
LOOK = "--diagnose.groups 0 --diagnose.coupling-tokens 4096 --tokens-every 0 --save-every 0 --no-report"
VALUE = "--diagnose.value-budget 32768 --diagnose.value-continuations 64"
FORMAT, DECISIVE = ("preamble", "separator"), ("result",)


def train_run(flags: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "tokencredit", "train", *shlex.split(flags), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    if done.returncode:
        raise RuntimeError(f"{flags} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return folder


def tokens_of(folder: Path, step: int) -> list[dict[str, Any]]:
    """Evidence of every token with its class."""
    from pyarrow import parquet

    found = parquet.read_table(folder / "findings" / f"step-{step:06}.parquet").to_pylist()
    classes = parquet.read_table(folder / "tokens" / f"step-{step:06}.parquet", columns=["token_class"]).column("token_class").to_pylist()
    return [row | {"token_class": name} for row, name in zip(found, classes, strict=True)]


def share(rows: list[dict[str, Any]], classes: Iterable[str], size: Callable[[dict[str, Any]], float]) -> float:
    inside = sum(size(row) for row in rows if row["token_class"] in classes)
    return inside / sum(size(row) for row in rows)


def cancelled(rows: list[dict[str, Any]], positive: str, negative: str, classes: Iterable[str] | None) -> float:
    chosen = [row for row in rows if row[positive] is not None and (classes is None or row["token_class"] in classes)]
    whole = sum(abs(row[positive]) + abs(row[negative]) for row in chosen)
    return 1 - sum(abs(row[positive] + row[negative]) for row in chosen) / whole if whole else math.nan


def pairs(table: list[dict[str, Any]], identity: str, *buckets: str) -> dict[str, float]:
    wanted = [
        row
        for row in table
        if identity in (None, row["identity"]) and (not buckets or {row["confidence"], row["other_confidence"]} <= set(buckets))
    ]
    return {
        "pairs": sum(row["pairs"] for row in wanted) / sum(row["pairs"] for row in table),
        "coupling": sum(row["share"] for row in wanted),
    }


def observed_numbers(folder: Path, step: int) -> dict[str, Any]:
    """The numbers of this experiment from the files of one microscope observation."""
    written = json.loads((folder / "findings" / f"step-{step:06}.json").read_text())
    found = {finding["name"]: finding for finding in written["findings"]}
    rows, flips, table = tokens_of(folder, step), found["flips"]["numbers"], found["coupling"]["tables"]["pairs"]
    unsure = found["flips"]["tables"]["by_confidence"]
    result: dict[str, Any] = {
        "correlation/first": found["effect"]["numbers"]["first/correlation"],
        "correlation/step": found["effect"]["numbers"]["step/correlation"],
        **{f"flips/{key}": flips[f"step/band/{key}"] for key in ("positive/boosted", "negative/boosted", "positive/flip", "negative/flip")},
        **{
            f"flips/unsure/{row['side']}/boosted": row["boosted"]
            for row in unsure
            if row["horizon"] == "step" and row["confidence"] == "p < 0.5"
        },
        **{f"coupling/same/{key}": value for key, value in pairs(table, "same").items()},
        **{f"coupling/same unsure/{key}": value for key, value in pairs(table, "same", "p < 0.5").items()},
        **{f"coupling/different unsure/{key}": value for key, value in pairs(table, "different", "p < 0.5").items()},
        "tax/any": found["tax"]["numbers"]["any/kl"],
        "cancelled/batch/all": cancelled(rows, "raw_positive", "raw_negative", None),
        "cancelled/mini/all": cancelled(rows, "raw_mini_positive", "raw_mini_negative", None),
    }
    if any(row["token_class"] in DECISIVE for row in rows):
        for name, classes in (("format", FORMAT), ("decisive", DECISIVE)):
            result |= {
                f"cancelled/batch/{name}": cancelled(rows, "raw_positive", "raw_negative", classes),
                f"cancelled/mini/{name}": cancelled(rows, "raw_mini_positive", "raw_mini_negative", classes),
                f"moved/kl/{name}": share(rows, classes, lambda row: row["kl"]),
                f"moved/change/{name}": share(rows, classes, lambda row: abs(row["change_step"])),
                f"effect/positive/{name}": share(rows, classes, lambda row: abs(row["raw_positive"])),
                f"effect/net/{name}": share(rows, classes, lambda row: abs(row["raw_positive"] + row["raw_negative"])),
            }
    if "value" in found:
        result |= {f"value/{key}": value for key, value in found["value"]["numbers"].items()}
    return result


def one_seed(base: str, seed: int, scratch: Path, arms: dict[str, str]) -> list[dict[str, Any]]:
    common = f"{BASES[base]} --seed {seed} {NO_EVALUATION} {LOOK}"
    steady = train_run(f"--recipe dapo --steps 40 --keep-every 20 --diagnose.every 20 {common}", scratch / f"{base}-{seed}")
    commit = json.loads((steady / "env.json").read_text())["commit"]
    rows = [{"arm": "run", "start": step - 1, **observed_numbers(steady, step)} for step in (1, 20, 40)]
    # The last of two equal flags counts. Another seed, so that the checkpoint does not meet the prompts of the run's first step again.
    starts = {0: "", 20: f"--model {steady / 'checkpoints' / 'step-000020'} --seed {1000 + seed}"}
    for start, other in starts.items():
        for arm, flags in arms.items():
            worth = VALUE if arm == "shuffled" else ""
            folder = train_run(f"{flags} {common} {other} --steps 1 --diagnose.every 1 {worth}", scratch / f"{base}-{seed}-{start}-{arm}")
            rows.append({"arm": arm, "start": start, **observed_numbers(folder, 1)})
    return [{"base": base, "seed": seed, "commit": commit, **row} for row in rows]


def cancellation_claims() -> None:
    """What the abstract of the cancellation paper (2605.08666) claims, tested where it can be measured.

    python -m tokencredit.lab.studies.microscope cancellation --seeds 8 --jobs 2 --out cancellation-claims

    For each base and seed a `dapo` run of 40 steps is observed three times (steps 1, 20, 40). Then, from the base and from step 20 of
    the run, arms that differ in one thing take single training steps on the same rollouts: shuffled, query-preserved and stratified
    batching, and positive-only credit. Every run is `tokencredit train` in a process of its own with one thread; `--jobs 0` prints the
    tables of existing results.
    """
    parser = parser_of(cancellation_claims)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--bases", default=",".join(BASES))
    parser.add_argument("--runs-only", action="store_true", help="leave the arms out")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    file = options.out / "results.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    done = {(row["base"], row["seed"]) for row in rows}
    wanted = [(base, seed) for seed in range(options.seeds) for base in options.bases.split(",") if (base, seed) not in done]
    if options.jobs and wanted:
        options.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
            for number, found in enumerate(
                pool.map(lambda chosen: one_seed(chosen[0], chosen[1], Path(scratch), {} if options.runs_only else ARMS), wanted), 1
            ):
                rows += found
                file.write_text(json.dumps(rows, indent=1) + "\n")
                print(f"{number} of {len(wanted)}", file=sys.stderr)
    print_claim_tables(rows)


Rows = list[dict[str, Any]]


def mean_and_spread(rows: Rows, key: str) -> str:
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


def print_claim_tables(rows: Rows) -> None:
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
    lines = [[base, str(step), *(mean_and_spread(found, key) for key in columns.values())] for (base, step), found in runs.items()]
    print_table("Flips: share of tokens whose log-prob rises in a training step", ["base", "training step", *columns], lines)


def coupling(runs: dict[tuple[str, int], Rows]) -> None:
    columns = {"same token": "same", "same, both p < 0.5": "same unsure", "different, both p < 0.5": "different unsure"}
    lines = [
        [
            base,
            str(step),
            *(
                f"{mean_and_spread(found, f'coupling/{key}/pairs')}; {mean_and_spread(found, f'coupling/{key}/coupling')}"
                for key in columns.values()
            ),
        ]
        for (base, step), found in runs.items()
    ]
    print_table("Coupling: share of pairs; share of all |K|", ["base", "training step", *columns], lines)


def value(starts: dict[tuple[str, int], Rows]) -> None:
    columns = [f"{side}/{kind}" for side in ("positive", "negative") for kind in ("value", "gain")]

    def cell(found: Rows, column: str) -> str:
        above = sum((row[f"value/{column}/low"] or -1) > 0 for row in found)
        return f"{mean_and_spread(found, f'value/{column}/difference')}; {above} of {len(found)}"

    lines = [[base, str(start), *(cell(found, column) for column in columns)] for (base, start), found in starts.items()]
    title = "Value: boosted less suppressed tokens, by side; how many seeds have an interval above 0"
    print_table(title, ["base", "start", *columns], lines)


def cancellation(by_arm: dict[tuple[str, int, str], Rows]) -> None:
    lines = [
        [
            base,
            str(start),
            arm,
            *(mean_and_spread(found, f"cancelled/mini/{part}") for part in ("all", "format", "decisive")),
            mean_and_spread(found, "cancelled/batch/format"),
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
        kl = (
            cell
            for part in ("format", "decisive")
            for cell in (mean_and_spread(both, f"moved/kl/{part}"), mean_and_spread(alone, f"moved/kl/{part}"))
        )
        gaps = (paired(both, alone, f"moved/kl/{part}") for part in ("format", "decisive"))
        net, positive = "effect/net/format", "effect/positive/format"
        lines.append(
            [base, str(start), *kl, *gaps, mean_and_spread(both, positive), mean_and_spread(both, net), paired(both, both, net, positive)]
        )
    header = ["format: both sides", "format: positive-only", "decisive: both sides", "decisive: positive-only"]
    header += ["format, difference", "decisive, difference", "format in |D+|", "format in |D+ + D-|", "difference"]
    print_table("Movement: share of KL moved, both sides against positive-only", ["base", "start", *header], lines)


SHOWN = (
    "accuracy", "flips/first/band/positive/boosted", "flips/first/band/negative/boosted",
    "flips/step/band/positive/boosted", "flips/step/band/negative/boosted",
    "effect/first/correlation", "effect/step/correlation", "effect/raw/correlation", "cancellation/mass", "cancellation/mini/mass",
    "coupling/outvoted", "coupling/pairs/same",
    "coupling/pairs/same_coupling", "coupling/pairs/low_of_same", "coupling/pairs/low_of_same_coupling", "tax/certain/kl", "tax/dead/kl",
    "drift/equal/absolute", "drift/unequal/mean", "entropy/before", "entropy/after", "masses/dead_groups",
)  # fmt: skip

SHOTS = "23+45=68\n17+31=48\n56+27=83\n"


def write_rollouts(policy: Policy, file: Path, *, prompts: int, group_size: int, seed: int) -> float:
    """Returns the share of right answers."""
    rng = Random(seed)
    terms = [(rng.randrange(10, 100), rng.randrange(10, 100)) for _ in range(prompts)]
    encoded = [policy.encode(f"{SHOTS}{left}+{right}=") for left, right in terms]
    rollouts = sample(policy, encoded, SamplingParams(group_size=group_size, max_new_tokens=8, seed=seed)).rollouts
    ids = [rollouts.tokens[row][rollouts.mask[row]].tolist() for row in range(len(rollouts.prompts))]
    right = [policy.decode(ids[row]).strip() == str(sum(terms[int(rollouts.group[row])])) for row in range(len(ids))]
    classes = [["end" if token in policy.end_tokens else "answer" for token in row] for row in ids]
    write_rows(file, rollout_rows(rollouts, torch.tensor(right, dtype=torch.float32), token_class=classes))
    return mean(right)


def diagnose(model: Path, file: Path, out: Path, rate: float, recipe: str) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "tokencredit", "diagnose", "--model", str(model), "--rollouts", str(file), "--recipe", recipe]
    command += ["--learning-rate", str(rate), "--groups", "0", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr)[-3000:])
    found = json.loads((out / "findings" / "step-000001.json").read_text())
    return {finding["name"]: finding for finding in found["findings"]}


def print_real_model(rows: list[dict[str, Any]]) -> None:
    keys = [key for key in SHOWN if key in rows[0]]
    arms = list(dict.fromkeys((row["recipe"], row["rate"]) for row in rows))
    print(f"| number | {' | '.join(f'{recipe}, rate {rate:g}' for recipe, rate in arms)} |\n|{' --- |' * (1 + len(arms))}")
    for key in keys:
        cells = []
        for arm in arms:
            values = [row[key] for row in rows if (row["recipe"], row["rate"]) == arm and row.get(key) is not None]
            cells.append(f"{mean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else "–")
        print(f"| {key} | {' | '.join(cells)} |")


def real_model() -> None:
    """Flips and coupling on a language model: two-digit addition after three worked examples, diagnosed from a rollout file.

    python -m tokencredit.lab.studies.microscope real-model --model DIR --seeds 3 --out real-model

    DIR holds a causal LM whose generation_config names the newline as its end token (an answer is one line). The rollouts are sampled
    here and written to a file as any trainer could; `tokencredit diagnose --model --rollouts` observes one training step on them.
    """
    parser = parser_of(real_model)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    file = options.out / "results.json"
    if options.model is None:
        print_real_model(json.loads(file.read_text()))
        return
    policy = load_policy(str(options.model), device=choose_device("auto"), dtype="float32")
    rows: list[dict[str, Any]] = []
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as scratch:
            rollouts = Path(scratch) / "rollouts.parquet"
            accuracy = write_rollouts(policy, rollouts, prompts=options.prompts, group_size=options.group_size, seed=seed)
            for recipe, rate in (("dapo", 1e-6), ("dapo", 1e-5), ("delta", 1e-6)):
                found = diagnose(options.model, rollouts, Path(scratch) / f"{recipe}-{rate}", rate, recipe)
                numbers = {f"{name}/{key}": value for name, finding in found.items() for key, value in finding["numbers"].items()}
                tables = {"pairs": found["coupling"]["tables"]["pairs"], "flip_matrix": found["flips"]["tables"]["matrix"]}
                known = {"seed": seed, "recipe": recipe, "rate": rate, "accuracy": accuracy, "commit": describe_environment()["commit"]}
                rows.append(known | numbers | tables)
                file.write_text(json.dumps(rows, indent=1) + "\n")
    print_real_model(rows)


if __name__ == "__main__":
    run_command({"cancellation": cancellation_claims, "real-model": real_model})
