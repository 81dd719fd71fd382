"""Preflight checks, before anything is written: model against task and budget, gold answers, data fingerprint, leaks."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokencredit.config.messages import shortened
from tokencredit.config.resume import PATHS_OF_TASKS
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError, GuardError
from tokencredit.policy.policy import Policy
from tokencredit.seeds import derive_seed
from tokencredit.storage.run_dir import RunDir
from tokencredit.tasks import DemonstratingTurns, GoldChecking, GoldReport, HeldOut, MultiTurn, Problem, Task, marks_steps, revision_prompt


def check_model_and_task(policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig) -> None:
    """Refuse, before anything is written, a model that cannot read the task or a budget that cannot hold its prompts."""
    check_turns(task, config)
    prompts = [policy.ask(problem.prompt) for problem in problems]
    unknown = policy.tokenizer.unk_token_id
    if unknown is not None and any(unknown in prompt for prompt in prompts):
        raise ConfigError(
            f"model {config.model!r} has no tokens for prompts of task {config.task.type!r}, such as {shortened(problems[0].prompt)}; "
            "name one that has with --model"
        )
    if "revisions" in config.shape.needs:
        prompt = revision_prompt(task, problems[0], problems[0].answer, problems[0].answer)
        if unknown is not None and unknown in policy.ask(prompt):
            raise ConfigError(f"model {config.model!r} has no tokens for revision prompts of task {config.task.type!r}, such as {prompt!r}")
    if config.credit.needs_step_marks and not marks_steps(task):
        raise ConfigError(f"task {config.task.type!r} does not mark where steps begin; use credit.boundary 'tokens'")
    longest = max(len(prompt) for prompt in prompts) + config.sampling.max_new_tokens
    window = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(window, int) and longest > window:
        raise ConfigError(
            f"model {config.model!r} reads {window} tokens at most but a prompt with its response may take {longest}; lower "
            "sampling.max_new_tokens or prompt.few_shot"
        )
    if longest > config.optimizer.max_tokens:
        raise ConfigError(
            f"optimizer.max_tokens is {config.optimizer.max_tokens} but a prompt with its response may take {longest} tokens; "
            "give at least that"
        )


def check_turns(task: Task, config: TrainConfig) -> None:
    """Refuse settings that a multi-turn task does not support: those that need a response in one piece."""
    if not isinstance(task, MultiTurn):
        if lacking := [name for name in ("turns", "grade_turns") if hasattr(task, "reply") and not hasattr(task, name)]:
            raise ConfigError(
                f"task {config.task.type!r} has a method reply but lacks {', '.join(lacking)}; docs/multi-turn.md has an example"
            )
        return
    if task.turns < 1:
        raise ConfigError(f"task {config.task.type!r} has {task.turns} turns; it must have at least 1")
    wanted = {
        f"shape.type is {config.shape.type!r}": "revisions" in config.shape.needs and "a revision is one piece; use another shape",
        f"credit.type is {config.credit.type!r}": "prefix-values" in config.credit.needs
        and "prefixes are continued in one piece; use another credit",
        f"diagnose.value_budget is {config.diagnose.value_budget}": config.diagnose.value_budget
        and "prefixes are continued in one piece; set it to 0",
        f"prompt.few_shot is {config.prompt.few_shot}": config.prompt.few_shot and "a shot is one piece; set it to 0",
        "source is 'demonstrations'": config.source == "demonstrations"
        and not isinstance(task, DemonstratingTurns)
        and "it must show them with a method demonstrate_turns(problem, *, seed)",
        f"revision_share is {config.revision_share}": config.revision_share and "a revision is one piece; set it to 0",
    }
    for what, why in wanted.items():
        if why:
            raise ConfigError(f"{what} but task {config.task.type!r} converses in turns: {why}")


GOLD_FILE, NAMED = "gold.json", 3


def check_gold(task: Task, folder: RunDir) -> GoldReport | None:
    """Grade the task's gold answers: a row whose gold answer fails cannot teach anything.

    None where the task has none, or where this run has checked them before: then the same rows are left out again.
    """
    if not isinstance(task, GoldChecking):
        return None
    stored = folder.path / GOLD_FILE
    if not stored.is_file():
        return task.check_gold()
    task.leave_out(_read(stored))
    return None


def _read(path: Path) -> list[tuple[int, str]]:
    try:
        return [(int(line), str(reason)) for line, reason in json.loads(path.read_text(encoding="utf-8"))["failed"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}; without it a resumed run might use other problems") from None


def write_gold(report: GoldReport, folder: RunDir) -> str | None:
    """Write the report; returns a message for the user where gold answers failed."""
    message = None
    if report.failed:
        named = "; ".join(f"line {line} of {reason}" for line, reason in report.failed[:NAMED])
        more = f"; and {len(report.failed) - NAMED} more" if len(report.failed) > NAMED else ""
        message = f"{len(report.failed)} of {report.checked} gold answers are not graded right and are left out: {named}{more}"
        if all(event.get("message") != message for event in folder.read("events.jsonl")):
            folder.append_event(0, "gold", message, {"failed": len(report.failed), "checked": report.checked})
    folder.write_json(GOLD_FILE, {"checked": report.checked, "failed": report.failed})
    return message


DATA_FILE = "data.json"


def hash_problems(problems: Iterable[Problem]) -> str:
    """SHA-256 over prompts and answers, in order."""
    found = hashlib.sha256()
    for problem in problems:
        found.update(json.dumps([problem.prompt, problem.answer]).encode() + b"\n")
    return found.hexdigest()


def fingerprint(config: TrainConfig, task: Task, held_out: Sequence[Problem]) -> dict[str, Any]:
    """Hashes of the files a task reads, the held-out problems, and the problems of the first training step."""
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


def keep_fingerprint(folder: RunDir, found: dict[str, Any]) -> None:
    """Write the fingerprint of a new run; refuse to resume a run whose fingerprint differs."""
    path = folder.path / DATA_FILE
    if not path.is_file():
        if any(folder.checkpoints.glob("step-*")):
            raise ConfigError(f"{folder.path} has no {DATA_FILE}: an earlier version wrote it and held out other problems; start a new run")
        folder.write_json(DATA_FILE, found)
        return
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        differs = [f"{part}.{name}" for part in ("files", "held_out", "first_step") for name in _differing(stored[part], found[part])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}; without it a resumed run might use other problems") from None
    if differs:
        raise ConfigError(
            f"the data of this run has changed since it began ({', '.join(differs)} in {DATA_FILE}); restore it, or start a new run"
        )


def _differing(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    return sorted(name for name in {*one, *two} if one.get(name) != two.get(name))


def refuse_leaks(held_out: HeldOut, trained: Sequence[Problem], *, error: type[Exception] = GuardError) -> None:
    if leaked := held_out.leaks(trained):
        raise error(
            f"{len(leaked)} of {len(trained)} training problems are held out too, such as {shortened(leaked[0].prompt)}; the task's "
            "`problems` must never give one prompt on both sides"
        )
