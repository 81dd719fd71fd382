"""Train every recipe and run kind for a few steps on the CPU and hash what each run leaves behind.

A refactoring must not change a number. Record the hashes before it, check them after it:

    python scripts/same_bits.py record before.json
    python scripts/same_bits.py check before.json

Each case goes through the `tokencredit` command only, so the script survives any change of module names.
Clocks, the environment and the lock are left out. Sentences (notes of findings, messages of events, the model card) are
hashed apart from numbers: a change of wording is listed, a change of a number fails the check.
`--only trl` runs the cases of the TRL engine and needs an environment that has TRL; without `--only`, all other cases run.
"""

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

CLOCKS = {"timing.jsonl", "clocks.json", "manifest.json", "report.html", "lock", "env.json", "resumes.jsonl", "training_args.bin"}
"""Files that hold a clock or the hash of one, describe the machine, or belong to one process."""

PROSE = {"message", "note", "why", "notes", "told"}
"""Keys of JSON files whose values are sentences."""

SEVERAL_STEPS = ["--steps", "3", "--optimizer.steps-per-batch", "2", "--save-every", "1", "--tokens-every", "1"]
EVALUATION = [
    "--evaluation.every", "2", "--evaluation.problems", "16", "--evaluation.samples", "2",
    "--evaluation.final-problems", "16", "--evaluation.final-samples", "2",
]  # fmt: skip
GROUPS = ["--sampling.prompts", "6", "--sampling.group-size", "4"]
SMALL = [*SEVERAL_STEPS, *EVALUATION, "--device", "cpu", "--no-report"]
DELTA = ["train", "--recipe", "delta", *GROUPS, *SMALL]


class Case(NamedTuple):
    name: str
    commands: tuple[tuple[str, ...], ...]
    """Command lines, run one after another in the same folder; each writes to or reads from `run`."""
    stop_after: int | None = None
    """Interrupt the first command after so many optimizer steps, then resume it."""


def trained(name: str, *flags: str, stop_after: int | None = None, then: Sequence[Sequence[str]] = ()) -> Case:
    resumed = [] if stop_after is None else [("train", "--resume", "run", "--no-report")]
    return Case(name, ((*flags, "--out", "run"), *map(tuple, resumed), *map(tuple, then)), stop_after)


JSONL_TASK = [
    "--task.type", "jsonl", "--task.path", "rows.jsonl", "--task.template", "{question}", "--task.workers", "1", "--model", "steps-shift",
    "--task.grading", "regex", "--task.pattern", "#(.)$", "--task.gold-pattern", "#(.)$", "--sampling.max-new-tokens", "48",
    "--optimizer.learning-rate", "5e-4", "--optimizer.max-tokens", "8192",
]  # fmt: skip


def local_cases() -> list[Case]:
    from tokencredit.config.recipes import RECIPES

    cases = [
        trained(f"recipe/{name}", "train", "--recipe", name, *GROUPS, *SMALL, "--diagnose.every", "2", "--diagnose.groups", "2")
        for name in RECIPES
    ]
    for name in ("delta", "fade", "ibpo", "right-once", "dfpo", "ntf-anneal", "process"):
        if name in RECIPES:
            cases.append(trained(f"resumed/{name}", "train", "--recipe", name, *GROUPS, *SMALL, "--diagnose.every", "0", stop_after=3))
    cases += [
        trained("default", "train", *SMALL, "--sampling.prompts", "24"),
        trained("resumed/momentum", *DELTA, "--credit.momentum", "0.5", stop_after=3),
        trained("lora", *DELTA, "--lora.rank", "4", "--diagnose.every", "2"),
        trained("lora-resumed", *DELTA, "--lora.rank", "4", "--diagnose.every", "0", stop_after=3),
        trained("packed", *DELTA, "--passes", "packed", "--compile", "off", "--diagnose.every", "2"),
        trained("packed-host", *DELTA, "--passes", "packed", "--compile", "off", "--features", "host", "--scoring", "pass"),
        trained("packed-recompute", *DELTA, "--passes", "packed", "--compile", "off", "--features", "recompute", "--scoring", "pass"),
        trained("checkpointing", *DELTA, "--optimizer.gradient-checkpointing", "--diagnose.every", "2"),
        trained("float64", *DELTA, "--dtype", "float64", "--diagnose.every", "2"),
        trained("bfloat16", *DELTA, "--dtype", "bfloat16", "--diagnose.every", "2"),
        trained("bfloat16-stochastic", *DELTA, "--weights", "bfloat16-stochastic"),
        trained("reference", *DELTA, "--kl.beta", "0.01", "--kl.place", "loss"),
        trained("reference-in-reward", *DELTA, "--kl.beta", "0.01", "--kl.place", "reward"),
        trained("correction", *DELTA, "--correction.kind", "tis", "--scoring", "pass", "--dtype", "bfloat16"),
        trained("filter-groups", *DELTA, "--filter-groups"),
        trained("length-reward", *DELTA, "--reward.length", "0.2", "--sampling.stop", "#"),
        trained("balanced", *DELTA, "--batching.type", "reward-balanced", "--batching.method", "subsample"),
        trained("value-and-drift", *DELTA, "--diagnose.every", "2", "--diagnose.value-budget", "128", "--diagnose.value-continuations", "8",
                "--diagnose.drift-budget", "32"),
        trained("multi-turn", "train", "--task.type", "guess", "--recipe", "ntf", *GROUPS, *SMALL, "--diagnose.every", "2"),
        trained("multi-turn-delta", "train", "--task.type", "guess", "--recipe", "delta", *GROUPS, *SMALL, "--diagnose.every", "2"),
        trained("cotadd", "train", "--task.type", "cotadd", "--recipe", "dapo", *GROUPS, *SMALL, "--diagnose.every", "2"),
        trained("graded-in-children", *DELTA, *JSONL_TASK, "--diagnose.every", "0"),
        trained("sft", "sft", "--sampling.prompts", "8", *EVALUATION, "--steps", "3", "--save-every", "1", "--tokens-every", "1",
                "--device", "cpu", "--no-report"),
        trained("diagnosed-afterwards", *DELTA, "--diagnose.every", "0", "--keep-every", "1",
                then=[("diagnose", "run", "--step", "2")]),
        trained("more-steps", *DELTA, "--diagnose.every", "0", then=[("train", "--resume", "run", "--steps", "4", "--no-report")]),
    ]  # fmt: skip
    return cases


def trl_cases() -> list[Case]:
    trl = ["--engine", "trl", *GROUPS, *SMALL]
    names = ("dapo", "delta", "ntf", "gspo", "cispo", "dfpo", "fade", "ktae")
    cases = [trained(f"trl/{name}", "train", "--recipe", name, *trl) for name in names]
    return [*cases, trained("trl/resumed", "train", "--recipe", "delta", *trl, stop_after=3)]


@contextlib.contextmanager
def interrupted_after(steps: int | None) -> Iterator[None]:
    """Send SIGINT to this process right after the optimizer has moved the weights `steps` times."""
    if steps is None:
        yield
        return
    import torch

    original, count = torch.optim.AdamW.step, 0

    def step(self: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal count
        result = original(self, *arguments, **more)
        count += 1
        if count == steps:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    torch.optim.AdamW.step = step
    try:
        yield
    finally:
        torch.optim.AdamW.step = original


def write_rows(folder: Path) -> None:
    """A task file that the shipped base can solve: problems of `steps` with their answers."""
    from tokencredit.tasks.steps import Steps

    rng, task = Random(0), Steps()
    problems = [task.make_problem(rng) for _ in range(160)]
    rows = [{"question": problem.prompt, "answer": f"a:?;#{problem.answer}"} for problem in problems]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@contextlib.contextmanager
def folder_for(case: Case) -> Iterator[Path]:
    """An empty folder whose name depends on the case alone: a run with a task file records the file's path."""
    folder = Path(tempfile.gettempdir()) / "same_bits" / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_case(case: Case) -> dict[str, dict[str, str]]:
    """Run one case in a folder of its own; returns the hashes of every file it left in `run`."""
    import torch

    from tokencredit.cli import run as command

    torch.set_num_threads(1)
    home = os.getcwd()
    with folder_for(case) as scratch:
        os.chdir(scratch)
        try:
            if "jsonl" in case.commands[0]:
                write_rows(Path())
            for number, arguments in enumerate(case.commands):
                stop = case.stop_after if number == 0 else None
                printed = io.StringIO()
                with interrupted_after(stop), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                    code = exit_code(command, arguments)
                if code != (0 if stop is None else 128 + signal.SIGINT):
                    raise RuntimeError(f"{case.name}: {' '.join(arguments)} ended with {code}:\n{printed.getvalue()[-2000:]}")
            return hashes_of(Path("run"))
        finally:
            os.chdir(home)


def exit_code(command: Callable[[list[str]], int], arguments: Sequence[str]) -> int:
    try:
        return command(list(arguments))
    except SystemExit as left:
        return int(left.code or 0)


def hashes_of(folder: Path) -> dict[str, dict[str, str]]:
    """Two digests of every file: of all but its sentences, and of its sentences."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in CLOCKS)
    return {str(path.relative_to(folder)): hashes_of_file(path) for path in files}


def hashes_of_file(path: Path) -> dict[str, str]:
    if path.suffix == ".md":
        # A model card names today's date and the versions of this machine.
        return {"numbers": "", "prose": ""}
    if path.suffix == ".json" and path.name not in ("tokenizer.json",):
        return digests([json.loads(path.read_text())])
    if path.suffix == ".jsonl":
        return digests([json.loads(line) for line in path.read_text().splitlines()])
    return {"numbers": digest(path.read_bytes()), "prose": ""}


def digests(values: Sequence[Any]) -> dict[str, str]:
    prose: list[str] = []
    bare = [without_prose(value, prose.append) for value in values]
    return {"numbers": digest(json.dumps(bare).encode()), "prose": digest(json.dumps(prose).encode()) if prose else ""}


def without_prose(value: Any, keep: Callable[[str], None]) -> Any:
    """The same value without clocks, and with every sentence taken out and handed to `keep`."""
    if isinstance(value, Mapping):
        kept = {}
        for key, inner in value.items():
            if key in ("seconds", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"):
                continue
            if key in PROSE and isinstance(inner, str):
                keep(inner)
                continue
            kept[key] = without_prose(inner, keep)
        return kept
    if isinstance(value, list):
        return [without_prose(inner, keep) for inner in value]
    return value


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


def quietly() -> None:
    """One thread per process: tiny models crawl when several spin for the same core."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "TQDM_DISABLE": "1"}
    os.environ.pop("RANK", None)


def run_cases(cases: Sequence[Case], jobs: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=quietly) as pool:
        futures = {case.name: pool.submit(run_case, case) for case in cases}
        for number, (name, future) in enumerate(futures.items(), 1):
            print(f"\r{number}/{len(cases)} {name:<40}", end="", file=sys.stderr, flush=True)
            try:
                found[name] = future.result()
            except Exception as problem:
                found[name] = {"failed": {"numbers": re.sub(r"\s+", " ", str(problem))[:4000], "prose": ""}}
    print(file=sys.stderr)
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Files whose numbers differ, and files whose sentences do."""
    numbers, prose = [], []
    for name in [*before, *(name for name in after if name not in before)]:
        one, other = before.get(name, {}), after.get(name, {})
        for file in sorted(one.keys() | other.keys()):
            first, second = one.get(file), other.get(file)
            if first is None or second is None or first["numbers"] != second["numbers"]:
                what = "is new" if first is None else "is gone" if second is None else "differs"
                why = f": {second['numbers']}" if file == "failed" and second is not None else ""
                numbers.append(f"{name}: {file} {what}{why}")
            elif first["prose"] != second["prose"]:
                prose.append(f"{name}: {file}")
    return numbers, prose


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["record", "check", "list"])
    parser.add_argument("file", type=Path, nargs="?", help="where the hashes are kept")
    parser.add_argument("--only", default=None, help="names of cases, with * for any part; `trl` for those of the TRL engine")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    chosen = parser.parse_args()
    pattern = "trl/*" if chosen.only == "trl" else chosen.only
    cases = trl_cases() if pattern is not None and pattern.startswith("trl/") else local_cases()
    cases = [case for case in cases if pattern is None or fnmatch(case.name, pattern)]
    if chosen.do == "list":
        print("\n".join(case.name for case in cases))
        return 0
    if chosen.file is None:
        parser.error("name a FILE")
    stored = json.loads(chosen.file.read_text()) if chosen.file.exists() else {}
    found = run_cases(cases, chosen.jobs)
    if chosen.do == "record":
        chosen.file.write_text(json.dumps(stored | found, indent=1) + "\n")
        failed = [f"{name}: {files['failed']['numbers']}" for name, files in found.items() if "failed" in files]
        print("\n".join([*failed, f"{len(found)} cases recorded in {chosen.file}, {len(failed)} failed"]))
        return 1 if failed else 0
    numbers, prose = differences({case.name: stored.get(case.name, {}) for case in cases}, found)
    for line in numbers:
        print(line)
    print(f"{len(found)} cases: {len(numbers)} files differ in numbers, {len(prose)} in wording only")
    return 1 if numbers else 0


if __name__ == "__main__":
    sys.exit(main())
