"""Studies -> runs. What several studies ask for is run once."""

import hashlib
import shlex
from collections.abc import Iterable, Sequence
from functools import cache

from claims.declaration import Study
from claims.settings import SETTINGS
from tokencredit.commands.flags import parse_train
from tokencredit.config.resolve import to_toml
from tokencredit.config.train import TrainConfig
from tokencredit.lab.compare.design import PlannedRun, make_arm, make_design, read_recipes, reported_runs
from tokencredit.models import anchored, pinned_name

CHEAP = "--diagnose.every 0 --tokens-every 0 --save-every 0 --threads 1"
"""Only the numbers of a run are wanted; settings that look through the microscope say so after this."""


def place(setting: str, model: str) -> str:
    """The name under which runs of a setting from one base are paired."""
    return f"{setting}-{model}"


def needed_runs(studies: Iterable[Study], *, seeds: int, first_seed: int, flags: str) -> list[PlannedRun]:
    """Seed by seed, so that whatever is finished first can be compared; long settings first."""
    found: dict[tuple[object, ...], PlannedRun] = {}
    for study in studies:
        for setting, recipes in study.arms.items():
            for run in _runs(setting, recipes, seeds=seeds, first_seed=first_seed, flags=flags):
                found.setdefault(run.key, run)
    return sorted(found.values(), key=lambda run: (run.seed, -seconds_of(run)))


def belongs(run_base: str, recipe: str, study: Study) -> bool:
    return any(
        recipe in recipes and run_base == place(setting, model)
        for setting, recipes in study.arms.items()
        for model in SETTINGS[setting].models
    )


def seconds_of(run: PlannedRun) -> float:
    return next(one.seconds for one in SETTINGS.values() if run.base in (place(one.name, model) for model in one.models))


@cache
def digest(run: PlannedRun) -> str:
    """Of everything that is trained."""
    return hashlib.sha256(to_toml(run.config).encode()).hexdigest()[:16]


def _runs(setting: str, recipes: Sequence[str], *, seeds: int, first_seed: int, flags: str) -> list[PlannedRun]:
    held = SETTINGS[setting]

    def configure(recipe: str) -> TrainConfig:
        return anchored(parse_train([*shlex.split(f"{CHEAP} {held.flags} {flags}"), "--recipe", recipe]).config)

    arms = [make_arm(wanted, configure) for wanted in read_recipes(",".join(recipes))]
    bases = {place(setting, model): pinned_name(model) for model in held.models}
    design = make_design(arms, recipes[0], bases, seeds=seeds, first_seed=first_seed, rates=(), tune_seeds=1)
    return reported_runs(design, {})
