"""Which datasets of reasoning-gym are asked, how often, and with which parameters: checked before anything is made."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tokencredit.config.messages import first_line, shortened
from tokencredit.errors import ConfigError
from tokencredit.grade.gym_entries import SET_BY_THE_RUN, fitted, known_datasets, make_dataset, settings_of
from tokencredit.text import nearest

NO_ANSWER = "it gives no answer of its own, so that nobody can tell whether its scorer works"
BY_HASH = "its problems or answers change with Python's hash seed: a resumed run would be asked something else"

UNSUITED: dict[str, str] = {
    "composite": "task.mixture does what it is for",
    "codeio": "it makes problems by running stored programs that nobody has read, in the process that trains",
    "boxnet": NO_ANSWER,
    "graph_color": NO_ANSWER,
    "propositional_logic": NO_ANSWER,
    "rubiks_cube": NO_ANSWER,
    "rush_hour": NO_ANSWER,
    "intermediate_integration": BY_HASH,
    "isomorphic_strings": BY_HASH,
    "knight_swap": BY_HASH,
    "polynomial_multiplication": BY_HASH,
    "ransom_note": BY_HASH,
    "word_ladder": BY_HASH,
    "coin_flip": "its scorer takes 0 for right whenever the answer begins with 0",
    "game_of_life_halting": "its scorer takes any text for right",
    "puzzle24": "its scorer takes an expression over other numbers than the given ones for right",
}
"""Dataset -> why it is refused, as of reasoning-gym 0.1.25 (experiments/reasoning_gym_golds.py finds out)."""


class Share(NamedTuple):
    """A dataset and how often it is asked, relative to the others."""

    weight: float
    parameters: dict[str, Any]


def shares(dataset: str | None, mixture: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Share]:
    """Name -> share; of a single dataset too."""
    if (dataset is None) == (not mixture):
        said = "neither is set" if dataset is None else "both are set"
        raise ConfigError(f"task.dataset and task.mixture: {said}; task 'reasoning-gym' needs one of them, such as dataset letter_counting")
    if dataset is not None:
        return {dataset: Share(1.0, _checked("task.dataset", dataset, "task.parameters", parameters))}
    for name, weight in mixture.items():
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < float("inf"):
            raise ConfigError(f"task.mixture.{name} is {shortened(weight)}; give a number above 0")
    for name in parameters:
        if name not in mixture:
            raise ConfigError(f"task.parameters.{name} is for no dataset of task.mixture; {nearest(name[:60], mixture)}")
    found = {}
    for name, weight in mixture.items():
        given = parameters.get(name, {})
        if not isinstance(given, dict):
            raise ConfigError(f"task.parameters.{name} is {shortened(given)}; give a table: [task.parameters.{name}]")
        found[name] = Share(float(weight), _checked("task.mixture", name, f"task.parameters.{name}", given))
    return found


def _checked(field: str, name: str, where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, if the dataset is there, is suited and takes them."""
    if name not in known_datasets():
        raise ConfigError(f"{field} {shortened(name)} is not a dataset of reasoning-gym; {nearest(name[:60], known_datasets())}")
    if name in UNSUITED:
        raise ConfigError(f"{field} {name!r} is refused: {UNSUITED[name]}; choose another")
    defaults = settings_of(name)
    for key, value in given.items():
        if key in SET_BY_THE_RUN:
            raise ConfigError(f"{where}.{key} follows from the run; leave it out")
        if key not in defaults:
            raise ConfigError(f"{where}.{key[:60]} is not a setting of {name!r}; {nearest(key[:60], defaults)}")
        try:
            fitted(defaults[key], value)
        except (ValueError, TypeError) as problem:
            raise ConfigError(f"{where}.{key} is {shortened(value)}; {first_line(problem)}") from None
    try:
        make_dataset(name, given, 0)
    except Exception as problem:  # its checks are assertions, and what they do not see may break anywhere
        said = first_line(problem) if str(problem) else "no reason is given"
        named = [key for key in defaults if re.search(rf"\b{key}\b", said)] or list(given)
        fields = ", ".join(f"{where}.{key} = {shortened(given.get(key, defaults[key]))}" for key in named) or where
        raise ConfigError(f"{fields}: reasoning-gym's {name} does not take this: {said}") from None
    return dict(given)
