"""A task of one's own: found, made and used; every way in which that can fail is told."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tokencredit.config.base import as_kwargs
from tokencredit.config.resolve import resolve
from tokencredit.errors import ConfigError
from tokencredit.tasks import TASKS, HasDemonstrations, Task, verdicts
from tokencredit.tasks.custom import custom_task

GOOD = '''
from dataclasses import dataclass
from tokencredit.tasks import Problem
from tokencredit.tasks.split import draw_problems

class Capitals:
    def __init__(self, *, letters: int = 5) -> None:
        if letters > 20:
            raise RuntimeError("too many letters")
        self.letters = letters

    def make(self, rng):
        word = "".join(rng.choices("abcdefgh", k=self.letters))
        return Problem(prompt=f"{word} in capitals:", answer=word.upper())

    def problems(self, count, *, split, seed):
        return draw_problems(self.make, count, split=split, seed=seed)

    def grade(self, problem, response):
        return 1.0 if response.strip() == problem.answer else 0.0 / len(response)

    def token_class(self, problem, response):
        return ["response"] * len(response)

class Showing(Capitals):
    def demonstrate(self, problem, *, seed):
        return problem.answer

class Half:
    def problems(self, count, *, split, seed):
        return []
    grade = "not a method"

@dataclass
class Field:
    """A dataclass needs its module to be known by name."""
    letters: int = 5

NUMBER = 3
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the file, called from there; what is imported is forgotten afterwards."""
    known, path = set(sys.modules), list(sys.path)
    (tmp_path / "my_task.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.startswith(("own_task_", "my_", "package_of_mine")):
            del sys.modules[name]


@pytest.mark.parametrize("path", ["my_task.py:Capitals", "./my_task.py:Capitals", "my_task:Capitals"])
def test_a_class_is_found_in_a_file_or_a_module(path: str) -> None:
    task = custom_task(path=path, options={"letters": 4})
    assert isinstance(task, Task)
    problem = task.problems(1, split="train", seed=0)[0]
    assert len(problem.answer) == 4
    assert task.grade(problem, problem.answer) == 1.0


def test_a_package_and_what_lies_beside_a_file_are_found(here: Path) -> None:
    (here / "package_of_mine").mkdir()
    (here / "package_of_mine" / "__init__.py").write_text("")
    (here / "package_of_mine" / "tasks.py").write_text(GOOD)
    assert isinstance(custom_task(path="package_of_mine.tasks:Capitals"), Task)
    (here / "deep").mkdir()
    (here / "deep" / "my_words.py").write_text("LETTERS = 3\n")
    (here / "deep" / "random.py").write_text("from my_words import LETTERS\nimport random\n" + GOOD)
    assert isinstance(custom_task(path="deep/random.py:Capitals"), Task)
    assert "deep" not in str(sys.modules["random"].__file__)


def test_it_comes_from_a_configuration_with_its_optional_methods() -> None:
    config = resolve([{"task": {"type": "own", "path": "my_task.py:Showing", "options": {"letters": 3}}}])
    task = TASKS["own"](**as_kwargs(config.task))
    assert isinstance(task, HasDemonstrations)
    assert not isinstance(custom_task(path="my_task.py:Capitals"), HasDemonstrations)
    problem = task.problems(1, split="held-out", seed=0)[0]
    assert task.demonstrate(problem, seed=0) == problem.answer


def test_a_verifier_that_raises_has_graded_nothing() -> None:
    task = custom_task(path="my_task.py:Capitals")
    problem = task.problems(1, split="train", seed=0)[0]
    right, wrong, broken = verdicts(task, [(problem, problem.answer), (problem, "no"), (problem, "")])
    assert (right.score, wrong.score) == (1.0, 0.0)
    assert math.isnan(broken.score)
    assert "ZeroDivisionError" in str(broken.reason)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no path": ({"path": None}, "task.path is not set; task 'own' needs package.module:Name or file.py:Name"),
    "no name": ({"path": "my_task.py"}, "task.path is 'my_task.py'; task 'own' needs"),
    "an empty name": ({"path": "my_task.py:"}, "task.path is 'my_task.py:'; task 'own' needs"),
    "no file": ({"path": "no_task.py:Capitals"}, "task.path: 'no_task.py' is not a file"),
    "no module": ({"path": "my_tusk:Capitals"}, "task.path: my_tusk cannot be imported: ModuleNotFoundError: No module named 'my_tusk'"),
    "another name": ({"path": "my_task.py:Capital"}, "task.path: my_task.py has no 'Capital'; did you mean 'Capitals'?"),
    "no class": ({"path": "my_task.py:NUMBER"}, "task.path: NUMBER of my_task.py is 3; name a class"),
    "half a task": (
        {"path": "my_task.py:Half"},
        "task.path: Half of my_task.py is not a task; it lacks grade(self, problem, response) -> float; "
        "token_class(self, problem, response) -> list[str]. docs/your-task.md",
    ),
    "no task": (
        {"path": "my_task.py:Field"},
        "task.path: Field of my_task.py is not a task; it lacks problems(self, count, *, split, seed)",
    ),
    "a wrong option": (
        {"path": "my_task.py:Capitals", "options": {"words": 1}},
        "task.options: Capitals of my_task.py cannot be called with (words): got an unexpected keyword argument 'words'",
    ),
    "an option that breaks": (
        {"path": "my_task.py:Capitals", "options": {"letters": 21}},
        "task.options: Capitals of my_task.py cannot be created: RuntimeError: too many letters (my_task.py, line 9)",
    ),
    "code that breaks": ({"path": "my_broken.py:Capitals"}, "task.path: my_broken.py cannot be imported: ZeroDivisionError: division"),
    "code that is none": ({"path": "my_prose.py:Capitals"}, "task.path: my_prose.py cannot be imported: SyntaxError: "),
    "code that leaves": ({"path": "my_exit.py:Capitals"}, "task.path: my_exit.py cannot be imported: SystemExit: 7"),
    "a module that breaks": ({"path": "my_broken:Capitals"}, "task.path: my_broken cannot be imported: ZeroDivisionError"),
    "two dots": ({"path": "..my_task:Capitals"}, "task.path: ..my_task cannot be imported: TypeError"),
    "a folder": ({"path": "folder.py:Capitals"}, "task.path: 'folder.py' is not a file"),
    "odd characters": ({"path": "\x00.py:Capitals"}, "task.path: "),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str, here: Path) -> None:
    (here / "my_broken.py").write_text("one = 1\ntwo = one / 0\n")
    (here / "my_prose.py").write_text("This is prose.\n")
    (here / "my_exit.py").write_text("raise SystemExit(7)\n")
    (here / "folder.py").mkdir()
    options, words = MISTAKES[mistake]
    with pytest.raises(ConfigError) as told:
        custom_task(**options)
    assert str(told.value).startswith(words)
    assert "own_task_my_broken" not in sys.modules


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def problems(self, count): return []", "raised TypeError.*it must be problems"),
        (
            "def problems(self, count, *, split, seed): return [{'prompt': 'a', 'answer': 'b'}]",
            "returned a list of dict; each item must be",
        ),
        ("def problems(self, count, *, split, seed): yield 1", "it must return a list of one Problem"),
        ("def problems(self, count, *, split, seed): return {}['x']", "raised KeyError: 'x'"),
        ("def problems(self, count, *, split, seed): return []", "it must return a list of one Problem"),
        ("def problems(self, count, *, split, seed): return [Problem(prompt='a', answer=3)]", "prompt and answer must be text"),
    ],
)
def test_problems_that_are_none_are_told_before_a_model_is_loaded(tmp_path: Path, body: str, words: str) -> None:
    (tmp_path / "odd.py").write_text(
        "from tokencredit.tasks import Problem\nclass Odd:\n"
        f"    {body}\n    def grade(self, problem, response): return 0.0\n    def token_class(self, problem, response): return []\n"
    )
    with pytest.raises(ConfigError, match=words):
        custom_task(path=f"{tmp_path / 'odd.py'}:Odd")
