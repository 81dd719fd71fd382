"""How fast answers are graded and programs run, and whether every gold answer is graded right.

    python experiments/grading_speed.py --gsm8k test.jsonl --mbpp mbpp_sanitized.json --repeats 3 --out DIR

GSM8K: JSON lines with `question` and `answer`. MBPP: the sanitized file, one JSON list.
"""

import argparse
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tokencredit.grade.code import CodeGold, grade_code
from tokencredit.grade.math_answer import grade_math
from tokencredit.grade.pool import GraderPool
from tokencredit.grade.sandbox import CodeLimits, run_program


def timed(work: Any, repeats: int) -> tuple[Any, list[float]]:
    seconds, found = [], None
    for _ in range(repeats):
        began = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - began)
    return found, seconds


def spread(count: int, seconds: list[float]) -> dict[str, float]:
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
    found["rows_per_second_in_process"] = spread(len(boxed), seconds)
    for workers in (1, 2):
        with GraderPool(grader="math", workers=workers) as pool:
            pool.grade(boxed[:8])
            verdicts, seconds = timed(partial(pool.grade, boxed), repeats)
        found[f"rows_per_second_pool_{workers}"] = spread(len(boxed), seconds)
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
            found[f"programs_per_second_{isolation}_{at_once}"] = spread(count, seconds)
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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gsm8k", type=Path, required=True)
    options.add_argument("--mbpp", type=Path, required=True)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    found = {"gsm8k": gsm8k(given.gsm8k, given.repeats), "programs": programs(given.repeats), "mbpp": mbpp(given.mbpp, given.repeats)}
    print(json.dumps(found, indent=2))
    (given.out / "grading.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
