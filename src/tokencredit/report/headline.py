"""The headline of a run: what was trained, the accuracy it reached, and the cost."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tokencredit.report.run_reader import Run, setting
from tokencredit.report.token_view import number
from tokencredit.stats import Interval, wilson
from tokencredit.text import brief


@dataclass(frozen=True)
class Accuracy:
    when: str
    share: float
    interval: Interval | None
    problems: int | None


@dataclass(frozen=True)
class Headline:
    name: str
    recipe: str
    task: str
    model: str
    seed: str
    steps: str
    done: int
    finished: bool
    trained: bool
    """False for a folder that holds a diagnosis but no training run."""
    subject: str
    """The subject of a diagnosis; empty for a training run."""
    greedy: tuple[Accuracy, ...]
    """Before and after training; for an unfinished run, the first and the last evaluation so far."""
    sampled: tuple[Accuracy, ...]
    best_step: str
    """Empty if result.json names none."""
    rollouts: float | None
    seconds: tuple[tuple[str, float], ...]
    """Wall-clock seconds by stage, largest first."""

    @property
    def about(self) -> str:
        """What follows "recipe on" in the title: the subject of a diagnosis, else the task."""
        return self.subject or self.task

    @property
    def total_seconds(self) -> float:
        return sum(value for _, value in self.seconds)


def headline(run: Run) -> Headline:
    config = run.config
    rollouts = run.result.get("rollouts_used", run.metrics[-1].get("rollouts_used") if run.metrics else None)
    return Headline(
        name=brief(run.name),
        recipe=brief(str(setting(config, "recipe", "unknown recipe"))),
        task=brief(str(setting(config, "task.type", "unknown task"))),
        model=brief(str(setting(config, "model", "unknown model"))),
        seed=_whole(setting(config, "seed")),
        steps=_whole(setting(config, "steps")),
        done=run.metrics[-1]["step"] if run.metrics else 0,
        finished=bool(run.result),
        trained=bool(run.metrics or run.result),
        subject=brief(str(run.diagnosis.get("subject", ""))),
        greedy=_before_and_after(run, "greedy"),
        sampled=_before_and_after(run, "sampled"),
        best_step=_whole(run.result.get("best_step"), otherwise="") if setting(config, "save_best", True) else "",
        rollouts=number(rollouts),
        seconds=_seconds(run),
    )


def _accuracy(when: str, row: dict[str, Any], prefix: str, kind: str) -> Accuracy | None:
    share, problems = number(row.get(f"{prefix}{kind}")), number(row.get(f"{prefix}problems"))
    if share is None or not 0 <= share <= 1:
        return None
    counted = int(problems) if problems is not None and problems >= 1 else None
    return Accuracy(when, share, wilson(share, counted) if counted else None, counted)


def _before_and_after(run: Run, kind: str) -> tuple[Accuracy, ...]:
    if run.result:
        found = [_accuracy(when, run.evaluated(when), "", kind) for when in ("before", "after")]
    else:
        evaluated = [row for row in run.metrics if f"held_out/{kind}" in row]
        ends = evaluated[:1] + evaluated[1:][-1:]
        found = [_accuracy(f"step {row['step']}", row, "held_out/", kind) for row in ends]
    return tuple(accuracy for accuracy in found if accuracy is not None)


def _seconds(run: Run) -> tuple[tuple[str, float], ...]:
    total: Counter[str] = Counter()
    stages = [run.result["seconds"]] if isinstance(run.result.get("seconds"), dict) else [row.get("seconds") for row in run.timing]
    for row in (one for one in stages if isinstance(one, dict)):
        total.update({brief(stage): value for stage, took in row.items() if (value := number(took)) is not None})
    return tuple(total.most_common())


def _whole(value: Any, *, otherwise: str = "unknown") -> str:
    return str(value) if isinstance(value, int) else otherwise
