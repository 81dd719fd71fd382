"""The methods section: every setting with its origin, the command that repeats the run, versions and commit."""

import shlex
from dataclasses import dataclass, replace
from typing import Any

from tokencredit.config import Recipe, origin_of
from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import resolve
from tokencredit.config.syntax import write_table
from tokencredit.config.train import STAGES, TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.report.run_reader import Run
from tokencredit.text import brief, sanitize


@dataclass(frozen=True)
class Setting:
    path: str
    value: str
    origin: str


@dataclass(frozen=True)
class StageBox:
    stage: str
    choice: str
    what: str
    formula: str
    settings: tuple[Setting, ...]
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class Methods:
    summary: str
    paper: str
    caveats: tuple[str, ...]
    stages: tuple[StageBox, ...]
    others: tuple[Setting, ...]
    """Settings that are not part of a recipe: task, sampling, optimizer, evaluation."""
    commands: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    commit: str
    unknown: str
    """Why this version cannot read the configuration. All settings are then in `others`, without origin. Empty if it can."""


LONGEST_VALUE = 2000
TABLES_OF_TASKS = ("task.parameters", "task.mixture", "task.options")


def shown(value: Any) -> str:
    """A setting's value as text."""
    return f"{value:g}" if isinstance(value, float) else "unset" if value is None else brief(str(value), LONGEST_VALUE)


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"optimizer": {"beta1": 0.9}} as {"optimizer.beta1": 0.9}. Tables in TABLES_OF_TASKS are one setting and stay nested."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        is_setting = not isinstance(value, dict) or prefix + key in TABLES_OF_TASKS
        found |= {prefix + key: value} if is_setting else flat(value, f"{prefix}{key}.")
    return found


def methods(run: Run) -> Methods:
    try:
        config = resolve([run.config])
    except ConfigError as problem:
        others = tuple(Setting(brief(path), shown(value), "") for path, value in flat(run.config).items())
        return Methods("", "", (), (), others, _commands(run, None), _versions(run), _commit(run), brief(str(problem)))
    entry = RECIPES[config.recipe]
    return Methods(
        summary=entry.summary,
        paper=entry.paper,
        caveats=entry.caveats,
        stages=tuple(_stage_box(config, stage) for stage in (*STAGES, "kl", "correction")),
        others=tuple(_with_chosen_path(run, setting) for setting in _others(config)),
        commands=_commands(run, config),
        versions=_versions(run),
        commit=_commit(run),
        unknown="",
    )


def _stage_box(config: TrainConfig, stage: str) -> StageBox:
    chosen, entry = getattr(config, stage), RECIPES[config.recipe]
    recommended = getattr(entry.recipe, stage)
    settings = []
    for field, value in chosen.model_dump(exclude={"type"}).items():
        unchanged = type(chosen) is type(recommended) and value == getattr(recommended, field)
        origin = entry.origins.get(f"{stage}.{field}") if unchanged else None
        default = value == type(chosen).model_fields[field].default
        settings.append(
            Setting(field, shown(value), origin or (origin_of(type(chosen), field) if unchanged or default else "set for this run"))
        )
    return StageBox(
        stage=stage,
        choice=str(getattr(chosen, "type", "")),
        what=" ".join((type(chosen).__doc__ or "").split()),
        formula=getattr(chosen, "formula", ""),
        settings=tuple(settings),
        caveats=tuple(getattr(chosen, "caveats", ())),
    )


def _others(config: TrainConfig) -> tuple[Setting, ...]:
    dumped = {key: value for key, value in config.model_dump().items() if key not in Recipe.model_fields or key.startswith("filter")}
    usual = flat(resolve([{"recipe": config.recipe, "task": {"type": config.task.type}}]).model_dump())
    return tuple(
        Setting(path, shown(value), "default" if path in usual and usual[path] == value else "set for this run")
        for path, value in flat(dumped).items()
    )


def _with_chosen_path(run: Run, setting: Setting) -> Setting:
    """For a setting "auto": the fast path that the engine chose, and the reason, as recorded at the last start or resume."""
    recorded = [paths for start in (run.environment, *run.resumes) if isinstance(paths := start.get("ways"), dict)]
    path = recorded[-1].get(setting.path) if recorded else None
    if setting.value != "auto" or not isinstance(path, dict) or not {"taken", "why"} <= path.keys():
        return setting
    return replace(setting, value=f"{setting.value}; chosen: {brief(str(path['taken']))} ({brief(str(path['why']))})")


def _commands(run: Run, config: TrainConfig | None) -> tuple[str, ...]:
    """For a diagnosis: its command. For a run: train from config.toml and, if that is readable, from the flags that differ."""
    if "command" in run.diagnosis:
        return (brief(str(run.diagnosis["command"]), LONGEST_VALUE),)
    from_file = f"tokencredit train {shlex.quote(sanitize(run.name) + '/config.toml')}"
    if config is None:
        return (from_file,)
    usual = flat(resolve([{"recipe": config.recipe, "task": {"type": config.task.type}}]).model_dump())
    command = ["tokencredit", "train", "--recipe", config.recipe, "--task.type", config.task.type]
    for path, value in flat(config.model_dump()).items():
        if path not in ("recipe", "task.type") and (path not in usual or usual[path] != value):
            name = path.replace("_", "-")
            command += _as_flag(name, value)
    return (from_file, sanitize(shlex.join(command)))


def _as_flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name if value else 'no-' + name}"]
    if isinstance(value, tuple):
        return [f"--{name}", *(str(each) for each in value)]
    return [f"--{name}", *write_table(value)] if isinstance(value, dict) else [f"--{name}", str(value)]


def _versions(run: Run) -> tuple[tuple[str, str], ...]:
    environment = run.environment
    packages = environment.get("packages")
    listed = packages if isinstance(packages, dict) else {}
    versions = {"python": environment.get("python"), **listed, "platform": environment.get("platform")}
    return tuple((brief(name), brief(str(version))) for name, version in versions.items() if version)


def _commit(run: Run) -> str:
    commit, diff = run.environment.get("commit"), run.environment.get("diff")
    return "" if not commit else brief(str(commit)) + (", with uncommitted changes (recorded in env.json)" if diff else "")
