"""How to do it again: every number with its origin, the exact command, versions and commit."""

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
    """Everything a recipe leaves open: task, sampling, optimizer, evaluation."""
    commands: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    commit: str
    unknown: str
    """Why the configuration could not be read as one of this version; then every setting is in `others`, without origin."""


LONGEST_VALUE = 2000
TABLES_OF_TASKS = ("task.parameters", "task.mixture", "task.options")


def shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "unset" if value is None else brief(str(value), LONGEST_VALUE)


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"optimizer": {"beta1": 0.9}} as {"optimizer.beta1": 0.9}; a table that is one setting stays whole."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        whole = not isinstance(value, dict) or prefix + key in TABLES_OF_TASKS
        found |= {prefix + key: value} if whole else flat(value, f"{prefix}{key}.")
    return found


def methods(run: Run) -> Methods:
    try:
        config = resolve([run.config])
    except ConfigError as problem:
        others = tuple(Setting(brief(path), shown(value), "") for path, value in flat(run.config).items())
        return Methods("", "", (), (), others, _repeat(run, None), _versions(run), _commit(run), brief(str(problem)))
    entry = RECIPES[config.recipe]
    return Methods(
        summary=entry.summary,
        paper=entry.paper,
        caveats=entry.caveats,
        stages=tuple(_stage_box(config, stage) for stage in (*STAGES, "kl", "correction")),
        others=tuple(_with_way(run, setting) for setting in _others(config)),
        commands=_repeat(run, config),
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
        said = entry.origins.get(f"{stage}.{field}") if unchanged else None
        default = value == type(chosen).model_fields[field].default
        settings.append(
            Setting(field, shown(value), said or (origin_of(type(chosen), field) if unchanged or default else "set for this run"))
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


def _with_way(run: Run, setting: Setting) -> Setting:
    """What a choice that was left to the engine came to, the last time that the run went on."""
    told = [ways for said in (run.environment, *run.resumes) if isinstance(ways := said.get("ways"), dict)]
    way = told[-1].get(setting.path) if told else None
    if setting.value != "auto" or not isinstance(way, dict) or not {"taken", "why"} <= way.keys():
        return setting
    return replace(setting, value=f"{setting.value}; here {brief(str(way['taken']))}: {brief(str(way['why']))}")


def _repeat(run: Run, config: TrainConfig | None) -> tuple[str, ...]:
    """A diagnosis: its own command. A run: from the resolved file; and, if readable, from the differences to the recipe."""
    if "command" in run.diagnosis:
        return (brief(str(run.diagnosis["command"]), LONGEST_VALUE),)
    from_file = f"tokencredit train {shlex.quote(sanitize(run.name) + '/config.toml')}"
    if config is None:
        return (from_file,)
    usual = flat(resolve([{"recipe": config.recipe, "task": {"type": config.task.type}}]).model_dump())
    words = ["tokencredit", "train", "--recipe", config.recipe, "--task.type", config.task.type]
    for path, value in flat(config.model_dump()).items():
        if path not in ("recipe", "task.type") and (path not in usual or usual[path] != value):
            name = path.replace("_", "-")
            words += _as_flag(name, value)
    return (from_file, sanitize(shlex.join(words)))


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
    told = {"python": environment.get("python"), **listed, "platform": environment.get("platform")}
    return tuple((brief(name), brief(str(version))) for name, version in told.items() if version)


def _commit(run: Run) -> str:
    commit, diff = run.environment.get("commit"), run.environment.get("diff")
    return "" if not commit else brief(str(commit)) + (", with uncommitted changes (env.json has them)" if diff else "")
