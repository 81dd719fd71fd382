"""`own`: a task of somebody's own, by import path. What it returns is their object, with whatever optional methods it has."""

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from tokencredit.config.messages import first_line, shortened
from tokencredit.errors import ConfigError
from tokencredit.tasks.protocol import Problem, Task
from tokencredit.text import suggest

NEEDED = {
    "problems": "problems(self, count, *, split, seed) -> list[Problem]",
    "grade": "grade(self, problem, response) -> float",
    "token_class": "token_class(self, problem, response) -> list[str]",
}


def own_task(*, path: str | None, options: Mapping[str, Any] | None = None) -> Task:
    """The class of `package.module:Name` or `file.py:Name`, called with `options`."""
    place, _, name = (path or "").rpartition(":")
    if not place or not name:
        said = "is not set" if path is None else f"is {shortened(path)}"
        raise ConfigError(f"task.path {said}; task 'own' needs package.module:Name or file.py:Name")
    module = _module(place)
    made_by = getattr(module, name, None)
    if made_by is None:
        raise ConfigError(f"task.path: {place} has no {name!r}; {suggest(name[:60], _classes(module))}")
    if not callable(made_by):
        raise ConfigError(f"task.path: {name} of {place} is {shortened(made_by)}; name a class")
    task = _made(made_by, f"{name} of {place}", dict(options or {}))
    missing = [signature for method, signature in NEEDED.items() if not callable(getattr(task, method, None))]
    if missing:
        raise ConfigError(f"task.path: {name} of {place} is no task; it lacks {'; '.join(missing)}. docs/your-task.md has an example")
    _asked_once(task, f"{name} of {place}")
    return task


def _asked_once(task: Any, said: str) -> None:
    """One problem, so that what is wrong with all of them is told before a model is loaded."""
    asked = f"task.path: problems(1, split='train', seed=0) of {said}"
    try:
        found = task.problems(1, split="train", seed=0)
    except ConfigError:
        raise
    except Exception as problem:
        raise ConfigError(f"{asked} raised {_told(problem)}; it must be {NEEDED['problems']}") from None
    if not isinstance(found, list | tuple) or len(found) != 1:
        raise ConfigError(f"{asked} gave {shortened(found)}; it must be a list of one Problem")
    if not isinstance(found[0], Problem):
        raise ConfigError(f"{asked} gave a list of {type(found[0]).__name__}; each must be a Problem(prompt=..., answer=...)")
    if not all(isinstance(text, str) for text in (found[0].prompt, found[0].answer)):
        raise ConfigError(f"{asked} gave {shortened(found[0])}; prompt and answer must be text")


def _module(place: str) -> ModuleType:
    file = Path(place) if place.endswith(".py") else None
    if file is not None and not file.is_file():
        raise ConfigError(f"task.path: {shortened(place)} is not a file; give file.py:Name or package.module:Name")
    # The command itself does not look for modules where it is called, and a file expects those beside it.
    for folder in (Path.cwd(), *([] if file is None else [file.absolute().parent])):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        return import_module(place) if file is None else _module_of(file)
    except (Exception, SystemExit) as problem:
        raise ConfigError(f"task.path: {place} cannot be imported: {_told(problem)}") from None


def _module_of(file: Path) -> ModuleType:
    """Under a name of its own: a file called random.py must not stand in for the standard one."""
    name = f"own_task_{file.stem}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _classes(module: ModuleType) -> list[str]:
    held = [name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__]
    return held or ["no class at all"]


def _made(made_by: Any, said: str, options: dict[str, Any]) -> Any:
    try:
        inspect.signature(made_by).bind(**options)
    except TypeError as problem:
        raise ConfigError(
            f"task.options: {said} cannot be called with ({', '.join(options) or 'nothing'}): {first_line(problem)}"
        ) from None
    except ValueError:
        pass  # a class without a signature is called and seen
    try:
        return made_by(**options)
    except ConfigError:
        raise
    except Exception as problem:
        raise ConfigError(f"task.options: {said} cannot be made: {_told(problem)}") from None


def _told(problem: BaseException) -> str:
    """What went wrong and on which line of whose file."""
    frames = extract_tb(problem.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames and not frames[-1].filename.startswith("<") else ""
    said = str(problem)[:300].splitlines()
    return f"{type(problem).__name__}{': ' + said[0] if said else ''}{where}"
