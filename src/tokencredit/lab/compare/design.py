"""Plans the runs of a comparison; it runs nothing.

Every recipe gets the same seeds, the same base models and the same number of learning rates. Rates are tuned on separate seeds
(from TUNING_SEEDS_FROM), which are never reported.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from tokencredit.config import Recipe
from tokencredit.config.messages import shortened
from tokencredit.config.recipes import RECIPES
from tokencredit.config.resolve import overlay, validated
from tokencredit.config.syntax import Wanted, as_layer, read_recipe
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.text import suggest

MAY_VARY = (*Recipe.model_fields, "optimizer", "reward", "lora", "sampling.prompts", "sampling.group_size", "steps")
"""Settings that may differ between recipes; all others are shared, or the recipes would not be compared on the same task.

`steps` may differ because a shorter run decays its learning rate earlier: no part of a longer run shows its result.
"""

RATE = "optimizer.learning_rate"
CONTROL = "random-lambda"
"""An A/A control with random coefficients: its difference to the reference is noise."""


class Arm(NamedTuple):
    label: str
    """The recipe as the user wrote it."""
    config: TrainConfig

    @property
    def control(self) -> bool:
        return self.label.partition(":")[0] == CONTROL


def read_recipes(text: str) -> list[Wanted]:
    """Parse `dapo,delta:credit.scope=group+credit.proxy=head` into names and settings; `make_arm` resolves them."""
    found = [read_recipe(part.strip(), MAY_VARY) for part in text.split(",")]
    labels = [one.label for one in found]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(f"recipes names {', '.join(twice)} more than once; name it once")
    return found


def make_arm(wanted: Wanted, configure: Callable[[str], TrainConfig]) -> Arm:
    """`configure` gives the configuration of a recipe under the shared files and flags."""
    config = configure(wanted.recipe)
    if not wanted.settings:
        return Arm(wanted.label, config)
    try:
        return Arm(wanted.label, with_settings(config, wanted.settings))
    except ConfigError as problem:
        raise ConfigError(f"recipes: {shortened(wanted.label)}: {problem}") from None


def with_settings(config: TrainConfig, settings: dict[str, Any]) -> TrainConfig:
    """Set values at dotted names and validate the whole configuration; a new `type` brings its own defaults."""
    return validated(overlay(config.model_dump(), as_layer(settings)))


def warn_if_group_size_overrides_recipe(wanted: Wanted, arm: Arm) -> str | None:
    """The warning for a recipe made for one response per prompt, under a shared group size."""
    size = arm.config.sampling.group_size
    made_for_it = not RECIPES[wanted.recipe].asks_once or arm.config.needs_siblings() is not None
    if size == 1 or made_for_it or "sampling.group_size" in wanted.settings:
        return None
    settings = f"sampling.prompts={arm.config.sampling.prompts * size}+sampling.group_size=1"
    return (
        f"{arm.label} is designed for one response per prompt, but the shared sampling.group_size is {size}: "
        f"add {settings} to its settings if you do not want {size}."
    )


def choose_reference(requested: str | None, arms: Sequence[Arm]) -> str:
    """The requested recipe; by default dapo if it is compared, else the first recipe."""
    labels = [arm.label for arm in arms]
    if requested is not None and requested not in labels:
        raise ConfigError(f"reference {shortened(requested)} is not among the recipes; {suggest(requested, labels)}")
    return requested or ("dapo" if "dapo" in labels else labels[0])


TUNING_SEEDS_FROM = 10_000
LONGEST_NAME = 60


class Design(NamedTuple):
    arms: tuple[Arm, ...]
    reference: str
    bases: Mapping[str, str]
    """The base's name as the user wrote it -> the model from which its runs start."""
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    """Empty: each recipe at the rate of its configuration."""
    tuning_seeds: tuple[int, ...]
    """Empty where nothing is tuned."""
    finalists: int | None = None
    """How many recipes advance from tuning to the reported seeds; None: all."""
    always: tuple[str, ...] = ()
    """Recipes that always advance, in addition to the reference and the controls."""

    @property
    def tunes(self) -> bool:
        return len(self.rates) > 1

    @property
    def always_included(self) -> set[str]:
        """Recipes that advance whatever their tuning result."""
        return {self.reference, *self.always, *(arm.label for arm in self.arms if arm.control)}


Key = tuple[str, str, float, int]
"""Recipe, base, rate, seed."""


class PlannedRun(NamedTuple):
    arm: str
    base: str
    rate: float
    seed: int
    tuning: bool
    config: TrainConfig

    @property
    def key(self) -> Key:
        return (self.arm, self.base, self.rate, self.seed)

    @property
    def path(self) -> PurePosixPath:
        """The run directory, relative to the comparison's folder."""
        return PurePosixPath("runs") / folder_name(self.base) / folder_name(self.arm) / f"rate-{self.rate:g}-seed-{self.seed}"

    @property
    def description(self) -> str:
        return f"{self.arm} on {self.base}, rate {self.rate:g}, seed {self.seed}{' (tuning)' if self.tuning else ''}"


def folder_name(label: str) -> str:
    """A valid file name, different for every label: labels that are long or hold special characters get a hash."""
    plain = re.sub(r"[^A-Za-z0-9.+=_-]+", "_", label).lstrip(".")
    if plain == label and len(label) <= LONGEST_NAME:
        return label
    return f"{plain[: LONGEST_NAME - 9]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def make_design(
    arms: Sequence[Arm],
    reference: str,
    bases: Mapping[str, str],
    *,
    seeds: int,
    first_seed: int,
    rates: Sequence[float],
    tune_seeds: int,
    finalists: int | None = None,
    always: Sequence[str] = (),
) -> Design:
    """Check the options and build the design."""
    for name, value, least in (("seeds", seeds, 1), ("first_seed", first_seed, 0), ("tune_seeds", tune_seeds, 1)):
        if value < least:
            raise ConfigError(f"{name} is {value}; give at least {least}")
    if first_seed + seeds > TUNING_SEEDS_FROM:
        raise ConfigError(f"first_seed + seeds is {first_seed + seeds}, but seeds from {TUNING_SEEDS_FROM} on are for tuning; stay below")
    if bad := [rate for rate in rates if not 0 < rate < float("inf")]:
        raise ConfigError(f"rates holds {bad[0]:g}; a learning rate must be above 0")
    if len(set(rates)) < len(rates):
        raise ConfigError(f"rates names a rate more than once: {', '.join(f'{rate:g}' for rate in rates)}")
    _check_finalists(finalists, always, [arm.label for arm in arms], rates)
    tuning = tuple(range(TUNING_SEEDS_FROM, TUNING_SEEDS_FROM + tune_seeds)) if len(rates) > 1 else ()
    reported = tuple(range(first_seed, first_seed + seeds))
    return Design(tuple(arms), reference, dict(bases), reported, tuple(rates), tuning, finalists, tuple(always))


def refuse_fixed_rates(rates: Sequence[float], fixed: Sequence[str]) -> None:
    """`fixed` are the labels of recipes that set a rate of their own."""
    if rates and fixed:
        raise ConfigError(f"recipes: {fixed[0]!r} sets {RATE}, but rates sets it for all; give one of them")


def _check_finalists(finalists: int | None, always: Sequence[str], labels: Sequence[str], rates: Sequence[float]) -> None:
    if finalists is None:
        if always:
            raise ConfigError(f"always names {always[0]!r}, but without finalists every recipe advances; give finalists, or leave it out")
        return
    if finalists < 1:
        raise ConfigError(f"finalists is {finalists}; give at least 1")
    if len(rates) < 2:
        raise ConfigError(f"finalists is {finalists}, but they are chosen by tuning; give several rates")
    for label in always:
        if label not in labels:
            raise ConfigError(f"always names {label!r}, which is not among the recipes; {suggest(label, labels)}")


def tuning_runs(design: Design) -> list[PlannedRun]:
    """All tuning runs, ordered by seed, so that partial results compare all recipes on the same seeds."""
    return [
        _planned(arm, base, model, rate, seed, tuning=True)
        for seed in design.tuning_seeds
        for base, model in design.bases.items()
        for arm in design.arms
        for rate in design.rates
    ]


def reported_runs(design: Design, best: Mapping[tuple[str, str], float], chosen: Collection[str] | None = None) -> list[PlannedRun]:
    """All runs that can start. `best`: (recipe, base) -> tuned rate, absent while unknown. `chosen`: recipes that advance; None: all."""
    wanted: list[PlannedRun] = []
    for seed in design.seeds:
        for base, model in design.bases.items():
            for arm in design.arms:
                rate = _rate_of(design, arm, base, best)
                if rate is not None and (chosen is None or arm.label in chosen):
                    wanted.append(_planned(arm, base, model, rate, seed, tuning=False))
    return wanted


def number_of_runs(design: Design) -> int:
    """The number of tuning and reported runs; it does not depend on which rate and recipes win."""
    tuned = len(design.arms) * len(design.tuning_seeds) * len(design.rates)
    return len(design.bases) * (tuned + _reported_recipes(design) * len(design.seeds))


def _reported_recipes(design: Design) -> int:
    if design.finalists is None:
        return len(design.arms)
    return len(design.always_included) + min(design.finalists, len(design.arms) - len(design.always_included))


def _rate_of(design: Design, arm: Arm, base: str, best: Mapping[tuple[str, str], float]) -> float | None:
    if design.tunes:
        return best.get((arm.label, base))
    return design.rates[0] if design.rates else arm.config.optimizer.learning_rate


def _planned(arm: Arm, base: str, model: str, rate: float, seed: int, *, tuning: bool) -> PlannedRun:
    settings = {"model": model, "seed": seed, RATE: rate, "evaluation.seed": _held_out_seed(arm.config, tuning=tuning)}
    return PlannedRun(arm.label, base, rate, seed, tuning, with_settings(arm.config, settings))


def _held_out_seed(config: TrainConfig, *, tuning: bool) -> int:
    """All reported runs share one held-out set. Tuning uses another, or the chosen rate would overfit the reported set."""
    return (config.evaluation.seed or 0) + (TUNING_SEEDS_FROM if tuning else 0)
