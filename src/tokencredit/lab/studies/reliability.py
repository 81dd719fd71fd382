"""Graders measured: speed, right verdicts on gold answers; and real failures on a GPU: out of memory, stop, checkpoint.

Commands: `grading`, `golds`, `gpu`.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.errors import GuardError
from tokencredit.grade.code import CodeGold, grade_code
from tokencredit.grade.gym import grade_gym
from tokencredit.grade.gym_entries import CHUNK, Entry, GymGold, checksum, known_datasets, make_entry
from tokencredit.grade.math_answer import grade_math
from tokencredit.grade.pool import GraderPool
from tokencredit.grade.protocol import Verdict
from tokencredit.grade.sandbox import CodeLimits, run_program
from tokencredit.lab.studies import parser_of, run_command
from tokencredit.policy.policy import Policy
from tokencredit.storage.checkpoints import checkpoints_in
from tokencredit.storage.manifest import damage
from tokencredit.tasks.reasoning_gym import UNSUITED
from tokencredit.tasks.steps import ALPHABET
from tokencredit.tasks.tokenizer import character_tokenizer
from tokencredit.trainer.callbacks import NoCallback
from tokencredit.trainer.checkpoint import TrainState, load_optimizer, save_checkpoint
from tokencredit.trainer.loop import train
from tokencredit.trainer.signals import StopSignal


def timed(work: Any, repeats: int) -> tuple[Any, list[float]]:
    seconds, found = [], None
    for _ in range(repeats):
        began = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - began)
    return found, seconds


def rate_spread(count: int, seconds: list[float]) -> dict[str, float]:
    """Per second: median, least and most of the repeats."""
    rates = sorted(count / each for each in seconds)
    return {"median": rates[len(rates) // 2], "least": rates[0], "most": rates[-1]}


def gsm8k(path: Path, repeats: int) -> dict[str, Any]:
    answers = [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()]
    golds = [re.findall(r"####\s*(.+)", answer)[-1].strip() for answer in answers]
    boxed = [(gold, rf"So it is \boxed{{{gold}}}.") for gold in golds]
    solved = list(zip(golds, answers, strict=True))
    grade_math("1", "1")
    found: dict[str, Any] = {"rows": len(golds)}
    for name, pairs in (("boxed", boxed), ("worked_solution", solved)):
        found[name] = sum(grade_math(*pair) == 1.0 for pair in pairs)
    _, seconds = timed(lambda: [grade_math(*pair) for pair in boxed], repeats)
    found["rows_per_second_in_process"] = rate_spread(len(boxed), seconds)
    for workers in (1, 2):
        with GraderPool(grader="math", workers=workers) as pool:
            pool.grade(boxed[:8])
            verdicts, seconds = timed(partial(pool.grade, boxed), repeats)
        found[f"rows_per_second_pool_{workers}"] = rate_spread(len(boxed), seconds)
        found[f"right_in_pool_{workers}"] = sum(verdict.score == 1.0 for verdict in verdicts)
    return found


def programs(repeats: int, count: int = 60) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for isolation in ("bubblewrap", "plain"):
        run = partial(run_program, "pass", limits=CodeLimits(), isolation=isolation)
        for at_once in (1, 2):
            with ThreadPoolExecutor(at_once) as threads:
                ends, seconds = timed(lambda run=run, threads=threads: list(threads.map(lambda _: run(), range(count))), repeats)
            assert all(end.exit_code == 0 for end in ends)
            found[f"programs_per_second_{isolation}_{at_once}"] = rate_spread(count, seconds)
    return found


def mbpp(path: Path, repeats: int) -> dict[str, Any]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    golds = [CodeGold(tuple(row["test_list"]), "\n".join(row["test_imports"])).dumps() for row in rows]
    found: dict[str, Any] = {"rows": len(rows)}
    for isolation in ("bubblewrap", "plain"):

        def grade(isolation: str = isolation) -> list[float]:
            return [grade_code(gold, row["code"], isolation=isolation) for gold, row in zip(golds, rows, strict=True)]  # pyright: ignore

        scores, seconds = timed(grade, repeats)
        found[isolation] = {"passed": sum(score == 1.0 for score in scores), "seconds": sorted(seconds)}
    return found


def grading() -> None:
    """How fast answers are graded and programs run, and whether every gold answer is graded right.

    python -m tokencredit.lab.studies.reliability grading --gsm8k test.jsonl --mbpp mbpp_sanitized.json --repeats 3 --out DIR

    GSM8K: JSON lines with `question` and `answer`. MBPP: the sanitized file, one JSON list.
    """
    options = parser_of(grading)
    options.add_argument("--gsm8k", type=Path, required=True)
    options.add_argument("--mbpp", type=Path, required=True)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    found = {"gsm8k": gsm8k(given.gsm8k, given.repeats), "programs": programs(given.repeats), "mbpp": mbpp(given.mbpp, given.repeats)}
    print(json.dumps(found, indent=2))
    (given.out / "grading.json").write_text(json.dumps(found, indent=2) + "\n")


NOT_TRIED = ("composite", "codeio")
"""Holds others; runs stored programs."""
ENTRIES, SECONDS = 40, 30
HEAD = f"# Datasets of reasoning-gym {version('reasoning-gym')}\n\n`python -m tokencredit.lab.studies.reliability golds --out ...`\n\n"
NONSENSE = ("", "0", "-1", "zqz", "[]", "{}", "[[1]]", "1 2 3", "((((", '"', "[[" * 3000, "9" * 5000, "1/0")


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def entries_of(name: str) -> list[Entry]:
    """As many as are made in the time there is."""
    made: list[Entry] = []
    try:
        with at_most(SECONDS):
            made.extend(make_entry(name, {}, 7 * CHUNK + index) for index in range(ENTRIES))
    except TimeoutError:
        pass
    return made


def score(name: str, entry: Entry, number: int, answer: str) -> float | str:
    gold = GymGold(name, number, checksum(entry.made["question"]), "")
    try:
        with at_most(5):
            found = grade_gym(gold.dumps(), answer, parameters={})
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"[:80]
    return str(found.reason) if isinstance(found, Verdict) else found


def measure_dataset(name: str, scoring: bool) -> dict[str, Any]:
    entries = entries_of(name)
    row: dict[str, Any] = {"entries": len(entries), "made": [checksum(f"{e.made['question']}{e.made['answer']}") for e in entries]}
    answers = [entry.made["answer"] for entry in entries]
    if not scoring or None in answers:
        return row | {"no_answer": None in answers}
    numbered = list(zip(range(7 * CHUNK, 8 * CHUNK), entries, strict=False))
    row["gold"] = sum(score(name, entry, number, str(entry.made["answer"])) == 1.0 for number, entry in numbered)
    pairs = [(number, entry, other) for (number, entry), other in zip(numbered, answers[1:], strict=False) if other != entry.made["answer"]]
    right = sum(score(name, entry, number, str(other)) == 1.0 for number, entry, other in pairs)
    row["another_answer_right"] = f"{right} of {len(pairs)}"
    taken = {text: sum(score(name, e, n, text) == 1.0 and e.made["answer"] != text for n, e in numbered[:20]) for text in NONSENSE}
    row["nonsense_right"] = {text[:12]: times for text, times in taken.items() if times}
    return row


def all_measured(hash_seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", __spec__.name, "golds", "--hash-seed", str(hash_seed)]
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": str(hash_seed)}, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def golds_table(rows: dict[str, dict[str, Any]]) -> str:
    lines = ["| dataset | entries | gold right | made the same | another's answer right | nonsense right | refused because |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for name, row in rows.items():
        nonsense = ", ".join(f"`{text}` x{times}" for text, times in row.get("nonsense_right", {}).items())
        cells_of_row = [row.get(key, "") for key in ("entries", "gold", "same", "another_answer_right")]
        lines.append(f"| {name} | {' | '.join(map(str, cells_of_row))} | {nonsense} | {UNSUITED.get(name, '')} |")
    return "\n".join(lines) + "\n"


def in_order(row: dict[str, Any]) -> bool:
    same, compared = row["same"].split(" of ")
    return row["gold"] == row["entries"] > 0 and same == compared


def golds() -> None:
    """Which datasets of reasoning-gym can be trained on: each with its defaults, and its scorer on right and wrong answers.

    python -m tokencredit.lab.studies.reliability golds --out reasoning-gym

    Two processes with different hash seeds make the same entries; one of them also scores gold answers, the answers of other entries,
    and texts that no entry accepts. Refused datasets are measured like the others.
    """
    parser = parser_of(golds)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--hash-seed", type=int, help="measure in this process and print")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.hash_seed is not None:
        print(json.dumps({name: measure_dataset(name, options.hash_seed == 1) for name in known_datasets() if name not in NOT_TRIED}))
        return
    first, second = all_measured(1), all_measured(2)
    rows: dict[str, dict[str, Any]] = {name: {} for name in NOT_TRIED}
    for name, row in first.items():
        pairs = list(zip(row.pop("made"), second[name]["made"], strict=False))
        rows[name] = row | {"same": f"{sum(one == two for one, two in pairs)} of {len(pairs)}"}
    fine = [name for name, row in rows.items() if name not in UNSUITED and in_order(row)]
    said = f"{len(rows)} datasets, {len(UNSUITED)} refused, {len(fine)} of the other {len(rows) - len(UNSUITED)} in order\n\n"
    print(said + golds_table(rows))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "datasets.json").write_text(json.dumps(rows, indent=1) + "\n")
        (options.out / "README.md").write_text(f"{HEAD}{said}{golds_table(rows)}")


SMOLLM2_SHAPE = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "tie_word_embeddings": True,
}  # fmt: skip


def large(**changes: Any) -> TrainConfig:
    """One pass per optimizer step, so that activations are most of the memory."""
    return resolve([
        {
            "device": "cuda",
            "steps": 3,
            "sampling": {"prompts": 256, "group_size": 16},
            "optimizer": {"max_tokens": 400_000, "steps_per_batch": 2},
            "evaluation": {"every": 0, "final_problems": 64, "final_samples": 1},
            "diagnose": {"every": 0},
            "tokens_every": 0,
            "save_every": 1,
        },
        changes,
    ])  # fmt: skip


def newest(folder: Path) -> Path:
    return checkpoints_in(folder / "checkpoints")[-1][1]


def distance(one: Path, two: Path) -> float:
    """Largest difference of a weight, as a share of the largest weight."""
    first, second = (AutoModelForCausalLM.from_pretrained(newest(folder)).state_dict() for folder in (one, two))
    return max(float((first[name] - second[name]).abs().max() / first[name].abs().max()) for name in first)


def limited(share: float, peak: int) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, share * peak / total))


def out_of_memory(scratch: Path) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    train(large(), scratch / "roomy")
    peak = torch.cuda.max_memory_allocated()
    found: dict[str, Any] = {"peak_mib": peak / 2**20}
    for share in (0.7, 0.4, 0.15):
        limited(share, peak)
        folder = scratch / f"tight-{share}"
        try:
            train(large(), folder)
            said = [json.loads(line)["message"] for line in (folder / "events.jsonl").read_text().splitlines()]
            found[str(share)] = {"retries": len(said), "first": said[0], "weights_differ_by": distance(scratch / "roomy", folder)}
        except GuardError as problem:
            found[str(share)] = {"stopped": str(problem), "steps_saved": len(checkpoints_in(folder / "checkpoints"))}
        limited(1e9, peak)
    return found


def resumed(scratch: Path) -> dict[str, Any]:
    """Stopped after the first of two optimizer steps of the second batch."""
    config = large(sampling={"prompts": 32, "group_size": 8}, steps=4)
    for name in ("whole", "again"):
        train(config, scratch / name)
    stop, steps = StopSignal(), [0]

    def stop_after_three(*_: Any) -> None:
        steps[0] += 1
        if steps[0] == 3:
            stop.request(15)

    handle = register_optimizer_step_pre_hook(stop_after_three)
    try:
        assert train(config, scratch / "cut", NoCallback(), stop).interrupted
    finally:
        handle.remove()
    at = newest(scratch / "cut").name
    train(config, scratch / "cut", resume=True)
    return {
        "stopped_at": at,
        "two_runs_left_alone_differ_by": distance(scratch / "whole", scratch / "again"),
        "stopped_and_resumed_differs_by": distance(scratch / "whole", scratch / "cut"),
    }


def checkpoint_cost(scratch: Path) -> dict[str, Any]:
    """Weights and both moments of a model of SmolLM2-135M's shape, in float32, from the GPU to the disk."""
    tokenizer = character_tokenizer(ALPHABET)
    model: Any = LlamaForCausalLM(LlamaConfig(**SMOLLM2_SHAPE, eos_token_id=1))
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    policy = Policy(model=model, tokenizer=tokenizer, end_tokens=(1,))
    seconds, folder = [], scratch
    for number in range(1, 4):
        progress = TrainState(step=number, rollouts_used=0, best_step=0, best_accuracy=0.0, before={}, stage_state={}, seconds={})
        began = time.perf_counter()
        folder = save_checkpoint(policy, optimizer, progress, scratch / "saved")
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    assert damage(folder) is None
    verifying = time.perf_counter() - began
    began = time.perf_counter()
    load_optimizer(optimizer, folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return {
        "mib": size / 2**20,
        "save_seconds": seconds,
        "verify_seconds": verifying,
        "load_optimizer_seconds": time.perf_counter() - began,
    }


def gpu() -> None:
    """On a GPU: a real out-of-memory and its effect on the weights, a stop and resume inside a batch, and the cost of a checkpoint.

    python -m tokencredit.lab.studies.reliability gpu --out DIR
    """
    options = parser_of(gpu)
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        for name, measure in (("checkpoint", checkpoint_cost), ("resume", resumed), ("out_of_memory", out_of_memory)):
            found[name] = measure(Path(scratch))
            print(json.dumps({name: found[name]}, indent=2), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gpu.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    run_command({"grading": grading, "golds": golds, "gpu": gpu})
