"""What a run was trained and tested on, as hashes: written when it begins, compared when it goes on."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokencredit.config.messages import shortened
from tokencredit.config.resume import PATHS_OF_TASKS
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError, GuardError
from tokencredit.seeds import derive_seed
from tokencredit.storage.run_dir import RunFolder
from tokencredit.tasks import HeldOut, Problem, Task

DATA_FILE = "data.json"


def hash_problems(problems: Iterable[Problem]) -> str:
    """Over prompts and answers, in order."""
    found = hashlib.sha256()
    for problem in problems:
        found.update(json.dumps([problem.prompt, problem.answer]).encode() + b"\n")
    return found.hexdigest()


def fingerprint(config: TrainConfig, task: Task, held_out: Sequence[Problem]) -> dict[str, Any]:
    """The files a task reads, the held-out problems, and the problems of the first training step."""
    named = {name: Path(path) for name in PATHS_OF_TASKS if (path := getattr(config.task, name, None)) is not None}
    first = first_problems(config, task)
    return {
        "task": config.task.model_dump(mode="json"),
        "files": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in named.items() if path.is_file()},
        "held_out": {"problems": len(held_out), "sha256": hash_problems(held_out)},
        "first_step": {"problems": len(first), "sha256": hash_problems(first)},
    }


def first_problems(config: TrainConfig, task: Task) -> list[Problem]:
    return task.problems(config.sampling.prompts, split="train", seed=derive_seed(config.seed, "prompts", 0, 0))


def held_out_problems(config: TrainConfig, task: Task) -> list[Problem]:
    seed = config.seed if config.evaluation.seed is None else config.evaluation.seed
    return task.problems(config.evaluation.final_problems, split="held-out", seed=derive_seed(seed, "held-out"))


def keep_fingerprint(folder: RunFolder, found: dict[str, Any]) -> None:
    """Write it where there is none; refuse to go on where it differs."""
    path = folder.path / DATA_FILE
    if not path.is_file():
        if any(folder.checkpoints.glob("step-*")):
            raise ConfigError(
                f"{folder.path} has no {DATA_FILE}: it was begun by an earlier version, which held other problems out; start a run of its own"
            )
        folder.write_json(DATA_FILE, found)
        return
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        differs = [f"{part}.{name}" for part in ("files", "held_out", "first_step") for name in _differing(stored[part], found[part])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}; without it a resumed run might be asked something else") from None
    if differs:
        raise ConfigError(
            f"the data of this run has changed since it began ({', '.join(differs)} in {DATA_FILE}); put it back as it was, or start a run "
            "of its own"
        )


def _differing(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    return sorted(name for name in {*one, *two} if one.get(name) != two.get(name))


def refuse_leaks(held_out: HeldOut, trained: Sequence[Problem], *, error: type[Exception] = GuardError) -> None:
    if leaked := held_out.leaks(trained):
        raise error(
            f"{len(leaked)} of {len(trained)} training problems are held out too, such as {shortened(leaked[0].prompt)}; the task's "
            "`problems` must never give one prompt on both sides"
        )
