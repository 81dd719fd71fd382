"""Entries of reasoning-gym by number. Each process generates them again, because they hold values that JSON cannot carry.

An entry is a pure function of its dataset, parameters and number; generating one does not change the run's random state.
"""

import json
import random
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import MISSING, fields
from datetime import date, time
from enum import Enum
from functools import lru_cache
from io import StringIO
from typing import Any, NamedTuple, Self

from tokencredit.errors import ConfigError

CHUNK = 100
"""Entries per seed: entry `number` is entry `number % CHUNK` of the dataset with seed `number // CHUNK`.

Some datasets generate all their entries at once.
"""
SET_BY_THE_RUN = ("seed", "size")
PRINTING = ("bf",)
FITTING: dict[type, type | tuple[type, ...]] = {bool: bool, int: int, float: (int, float), str: str, list: list, tuple: list}


class GymGold(NamedTuple):
    """Names an entry. The answer is included for readers and for demonstrations; the scorer does not use it."""

    dataset: str
    number: int
    question: int
    """Checksum of the question: the same number must give the same question in every process."""
    answer: str

    def dumps(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def loads(cls, gold: str) -> Self:
        return cls(**json.loads(gold))


def checksum(question: str) -> int:
    return zlib.crc32(question.encode())


class Entry(NamedTuple):
    dataset: Any
    """The reasoning-gym dataset; its `score_answer` takes `made`."""
    made: dict[str, Any]


@contextmanager
def undisturbed(seed: int) -> Iterator[None]:
    """Seed the global generators of random and numpy, which some datasets draw from, and restore their state afterwards."""
    import numpy

    kept, kept_numpy = random.getstate(), numpy.random.get_state()
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(kept)
        numpy.random.set_state(kept_numpy)


def known_datasets() -> dict[str, tuple[type, type]]:
    """Name -> (dataset class, config class)."""
    try:
        with undisturbed(0):
            import reasoning_gym.factory
    except ImportError as problem:
        raise ConfigError(
            f"task 'reasoning-gym' needs a package that is missing ({problem}); install it: pip install \"tokencredit[tasks]\""
        ) from None
    return reasoning_gym.factory.DATASETS


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a dataset with their defaults, without those that the run sets."""
    held = {}
    for field in fields(known_datasets()[name][1]):
        held[field.name] = field.default_factory() if field.default_factory is not MISSING else field.default
    return {field: default for field, default in held.items() if field not in SET_BY_THE_RUN}


def fitted(default: Any, value: Any) -> Any:
    """Convert a value from a config file to the type of the setting's default; ValueError states what would be right."""
    if default is None:
        return None if value == "none" else value
    if isinstance(default, Enum | date | time):
        return type(default)(value) if isinstance(default, Enum) else type(default).fromisoformat(value)
    wanted = FITTING.get(type(default))
    if wanted is None:
        raise ValueError("this setting cannot be set from a config; remove it")
    if not isinstance(value, wanted) or (isinstance(value, bool) and type(default) is not bool):
        raise ValueError(f"give a value like {default!r}")
    return tuple(value) if isinstance(value, list) and isinstance(default, tuple) else value


def make_dataset(name: str, parameters: Mapping[str, Any], seed: int) -> Any:
    dataset_class, config_class = known_datasets()[name]
    defaults = settings_of(name)
    config = config_class(**{key: fitted(defaults[key], value) for key, value in parameters.items()}, seed=seed, size=CHUNK)
    with undisturbed(seed):
        return dataset_class(config)


@lru_cache(maxsize=8)
def _dataset(name: str, parameters: str, seed: int) -> Any:
    return make_dataset(name, json.loads(parameters), seed)


@lru_cache(maxsize=64)
def _entry(name: str, parameters: str, number: int) -> Entry:
    seed, index = divmod(number, CHUNK)
    dataset = _dataset(name, parameters, seed)
    with undisturbed(number), redirect_stdout(StringIO()) if name in PRINTING else nullcontext():
        return Entry(dataset, dataset[index])


def make_entry(name: str, parameters: Mapping[str, Any], number: int) -> Entry:
    return _entry(name, json.dumps(parameters, sort_keys=True), number)
