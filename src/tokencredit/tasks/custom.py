"""`own`: a user's task class, loaded by import path. The task is the user's object, with any optional methods of the task protocols."""

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


def custom_task(*, path: str | None, options: Mapping[str, Any] | None = None) -> Task:
    """Import the class of `package.module:Name` or `file.py:Name`, call it with `options`, and check that the result is a task."""
    source, _, name = (path or "").rpartition(":")
    if not source or not name:
        given = "is not set" if path is None else f"is {shortened(path)}"
        raise ConfigError(f"task.path {given}; task 'own' needs package.module:Name or file.py:Name")
    module = _import(source)
    factory = getattr(module, name, None)
    if factory is None:
        raise ConfigError(f"task.path: {source} has no {name!r}; {suggest(name[:60], _classes(module))}")
    if not callable(factory):
        raise ConfigError(f"task.path: {name} of {source} is {shortened(factory)}; name a class")
    label = f"{name} of {source}"
    task = _construct(factory, label, dict(options or {}))
    missing = [signature for method, signature in NEEDED.items() if not callable(getattr(task, method, None))]
    if missing:
        raise ConfigError(f"task.path: {label} is not a task; it lacks {'; '.join(missing)}. docs/your-task.md has an example")
    _check_one_problem(task, label)
    return task


def _check_one_problem(task: Any, label: str) -> None:
    """Draw one problem, so that a mistake in `problems` is reported before a model is loaded."""
    call = f"task.path: problems(1, split='train', seed=0) of {label}"
    try:
        found = task.problems(1, split="train", seed=0)
    except ConfigError:
        raise
    except Exception as problem:
        raise ConfigError(f"{call} raised {_describe_error(problem)}; it must be {NEEDED['problems']}") from None
    if not isinstance(found, list | tuple) or len(found) != 1:
        raise ConfigError(f"{call} returned {shortened(found)}; it must return a list of one Problem")
    if not isinstance(found[0], Problem):
        raise ConfigError(f"{call} returned a list of {type(found[0]).__name__}; each item must be a Problem(prompt=..., answer=...)")
    if not all(isinstance(text, str) for text in (found[0].prompt, found[0].answer)):
        raise ConfigError(f"{call} returned {shortened(found[0])}; prompt and answer must be text")


def _import(source: str) -> ModuleType:
    file = Path(source) if source.endswith(".py") else None
    if file is not None and not file.is_file():
        raise ConfigError(f"task.path: {shortened(source)} is not a file; give file.py:Name or package.module:Name")
    # A console script does not search the current folder, and a file may import modules from its own folder.
    for folder in (Path.cwd(), *([] if file is None else [file.absolute().parent])):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        return import_module(source) if file is None else _import_file(file)
    except (Exception, SystemExit) as problem:
        raise ConfigError(f"task.path: {source} cannot be imported: {_describe_error(problem)}") from None


def _import_file(file: Path) -> ModuleType:
    """Import under a prefixed name: a file called random.py must not replace the standard module."""
    name = f"own_task_{file.stem}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
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


def _construct(factory: Any, label: str, options: dict[str, Any]) -> Any:
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as problem:
        raise ConfigError(
            f"task.options: {label} cannot be called with ({', '.join(options) or 'nothing'}): {first_line(problem)}"
        ) from None
    except ValueError:
        pass  # Some callables have no signature; the call itself then shows whether the options fit.
    try:
        return factory(**options)
    except ConfigError:
        raise
    except Exception as problem:
        raise ConfigError(f"task.options: {label} cannot be created: {_describe_error(problem)}") from None


def _describe_error(problem: BaseException) -> str:
    """The exception's type and first line, with the file and line that raised it."""
    frames = extract_tb(problem.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames and not frames[-1].filename.startswith("<") else ""
    lines = str(problem)[:300].splitlines()
    return f"{type(problem).__name__}{': ' + lines[0] if lines else ''}{where}"
