"""Which datasets of reasoning-gym can be trained on: every one with its defaults, and what its scorer makes of right and wrong answers.

    python experiments/reasoning_gym_golds.py --out experiments/2026-11-16-reasoning-gym

Two processes with different hash seeds make the same entries; one of them also scores gold answers, the answers of other
entries, and texts that are right for nothing. Datasets that are refused are measured like the others.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokencredit.grade.gym import grade_gym
from tokencredit.grade.gym_entries import CHUNK, Entry, GymGold, checksum, known_datasets, make_entry
from tokencredit.grade.protocol import Verdict
from tokencredit.tasks.reasoning_gym import UNSUITED

NOT_TRIED = ("composite", "codeio")
"""Holds others; runs stored programs."""
ENTRIES, SECONDS = 40, 30
HEAD = f"# Datasets of reasoning-gym {version('reasoning-gym')}\n\n`python experiments/reasoning_gym_golds.py --out ...`\n\n"
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


def measure(name: str, scoring: bool) -> dict[str, Any]:
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
    command = [sys.executable, __file__, "--hash-seed", str(hash_seed)]
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": str(hash_seed)}, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = ["| dataset | entries | gold right | made the same | another's answer right | nonsense right | refused because |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for name, row in rows.items():
        nonsense = ", ".join(f"`{text}` x{times}" for text, times in row.get("nonsense_right", {}).items())
        told = [row.get(key, "") for key in ("entries", "gold", "same", "another_answer_right")]
        lines.append(f"| {name} | {' | '.join(map(str, told))} | {nonsense} | {UNSUITED.get(name, '')} |")
    return "\n".join(lines) + "\n"


def in_order(row: dict[str, Any]) -> bool:
    same, compared = row["same"].split(" of ")
    return row["gold"] == row["entries"] > 0 and same == compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--hash-seed", type=int, help="measure in this process and print")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.hash_seed is not None:
        print(json.dumps({name: measure(name, options.hash_seed == 1) for name in known_datasets() if name not in NOT_TRIED}))
        return
    first, second = all_measured(1), all_measured(2)
    rows: dict[str, dict[str, Any]] = {name: {} for name in NOT_TRIED}
    for name, row in first.items():
        pairs = list(zip(row.pop("made"), second[name]["made"], strict=False))
        rows[name] = row | {"same": f"{sum(one == two for one, two in pairs)} of {len(pairs)}"}
    fine = [name for name, row in rows.items() if name not in UNSUITED and in_order(row)]
    said = f"{len(rows)} datasets, {len(UNSUITED)} refused, {len(fine)} of the other {len(rows) - len(UNSUITED)} in order\n\n"
    print(said + table(rows))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "datasets.json").write_text(json.dumps(rows, indent=1) + "\n")
        (options.out / "README.md").write_text(f"{HEAD}{said}{table(rows)}")


if __name__ == "__main__":
    main()
