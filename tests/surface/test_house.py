"""The source keeps the arrangement whose targets scripts/house.py holds; `make check-house` adds the two profiled rows."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "house.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def counts(script: ModuleType) -> dict[str, Any]:
    return script.House().static_counts()


def test_every_static_row_meets_its_target(script: ModuleType, counts: dict[str, Any]) -> None:
    assert set(counts) | set(script.PROFILED) == set(script.TARGETS)
    assert script.misses(counts) == [], f"\n{script.table(counts)}\n\n{script.details(counts)}"


def test_the_table_fits_a_terminal(script: ModuleType, counts: dict[str, Any]) -> None:
    profiled = {name: script.Count(123) for name in script.PROFILED}
    printed = script.table(counts | profiled).splitlines()
    assert len(printed) == 1 + len(script.TARGETS)
    assert max(map(len, printed)) <= 80


def checkout(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        file = root / "src" / "tokencredit" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_counts_of_a_checkout_made_for_it(script: ModuleType, tmp_path: Path) -> None:
    """Every static measure on a tree small enough to count by eye."""
    ten = ", ".join("abcdefghij")
    root = checkout(
        tmp_path,
        {
            "__init__.py": "",
            "recipes.py": "from tokencredit.config import recipes\n",
            "engine/trl.py": "\n",
            "config/__init__.py": 'def f(c):\n    return c.type == "delta"\n',
            "trainer/__init__.py": "",
            "trainer/loop.py": "from tokencredit.trainer.once import x\nfrom tokencredit.trainer import twice\n" + "\n" * 98,
            "trainer/once.py": "x = 1\n",
            "trainer/twice.py": 'import tokencredit.trainer.once_far\ny = z.type in ("delta", "ntf")\nw = z.device.type == "cuda"\n',
            "trainer/batches.py": (
                "class Graded:\n    rollouts: Rollouts | None\n\n\n"
                'class Pair:\n    graded: "tuple[Graded, int]"\n\n\n'
                "class Rule:\n    apply: Callable[[Rollouts], int]\n\n\n"
                "class Source(Protocol):\n    rollouts: Rollouts\n"
            ),
            "optim/wide.py": (
                f"def wide({ten}):\n    pass\n\n\ndef make_plan({ten}):\n    pass\n\n\nclass A:\n    def f(self, {ten[:-3]}): ...\n"
            ),
            "kernels/launch.py": f"from tokencredit.trainer.twice import y\n\n\ndef launch({ten}):\n    pass\n",
            "optim/fused.py": f"@triton.jit\ndef fused({ten}):\n    pass\n",
            "lab/bench.py": f"def outer():\n    def inner(*, {ten[:-3]}, **more):\n        pass\n",
        },
    )
    house = script.House(root)
    counts = house.static_counts()
    assert [source.path for source in house.shims] == ["engine/trl.py", "recipes.py"]
    assert (counts["core"].value, counts["lab"].value) == (10, 1)
    # 0 0 2 100 1 3 16 10 5 3 lines.
    assert counts["median"].value == 3
    assert counts["small"].names == ["trainer/once.py"]
    assert counts["flat"] == (5, ["trainer/"])
    assert counts["containers"].names == ["trainer/batches.py:Graded", "trainer/batches.py:Pair"]
    assert counts["loop"].value == 100
    assert counts["parameters"].names == ["lab/bench.py:outer.inner(10)", "optim/wide.py:wide(10)"]
    assert counts["types"].names == ["trainer/twice.py:2"]


def test_the_worked_example_says_how_many_files_are_edited_by_hand(script: ModuleType, tmp_path: Path) -> None:
    checkout(tmp_path, {"__init__.py": ""})
    blocks = ('```python title="src/a.py"\n```', '```diff title="docs/a.md"\n```', '```diff title="src/a.py"\n```', "```python\n```")
    (tmp_path / "CONTRIBUTING.md").write_text("\n\n".join(blocks))
    assert script.House(tmp_path).by_hand().value is None
    test = tmp_path / script.WORKED_EXAMPLE
    test.parent.mkdir(parents=True)
    test.touch()
    assert script.House(tmp_path).by_hand() == (2, ["docs/a.md", "src/a.py"])
