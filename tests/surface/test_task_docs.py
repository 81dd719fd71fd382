"""docs/tasks.md names every task, every dial with its default, and every dataset that is refused."""

import re
from pathlib import Path

import pytest

from tokencredit.config.train import CHOICES
from tokencredit.grade.gym import EVALUATED
from tokencredit.tasks import TASKS
from tokencredit.tasks.reasoning_gym import UNSUITED

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tasks.md").read_text()


def test_every_task_has_a_row_and_a_maker() -> None:
    assert set(TASKS) == set(CHOICES["task"])
    assert [name for name in TASKS if f"\n| `{name}" not in PAGE] == []


@pytest.mark.parametrize("name", ["steps", "cotadd", "arithmetic", "countdown", "reasoning-gym"])
def test_every_dial_is_named_with_its_default(name: str) -> None:
    for field, info in CHOICES["task"][name].model_fields.items():
        if field != "type":
            assert f"`{field}`" in PAGE
            assert not isinstance(info.default, int | float) or isinstance(info.default, bool) or f"{info.default:g}" in PAGE


def test_every_refusal_is_told() -> None:
    refused = PAGE.partition("### Datasets that are refused")[2]
    assert [name for name in UNSUITED if f"`{name}`" not in refused] == []
    assert [name for name in EVALUATED if f"`{name}`" not in PAGE] == []
    found = re.search(r"Of (\d+) datasets in reasoning-gym .*, (\d+) can be trained on", refused)
    assert found is not None
    assert int(found[1]) - int(found[2]) == len(UNSUITED)
