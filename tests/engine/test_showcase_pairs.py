"""Which responses are shown side by side: right and wrong ones of a problem."""

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.runs import small_config, trainer_of
from tokencredit.analysis.showcase import _contrasts, showcase
from tokencredit.pipeline.credit import MethodState
from tokencredit.seeds import derive_seed

NAN = math.nan


@pytest.mark.parametrize(
    ("scores", "groups", "pairs"),
    [
        # Several responses: the first right and the first wrong one of each problem that has both.
        ([0, 1, 1, 0, 0, 1], [0, 0, 0, 1, 1, 1], [(1, 0), (5, 3)]),
        ([1, 0, 1, 0, 1, 0], [0, 0, 0, 0, 1, 1], [(0, 1), (4, 5)]),
        ([1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 2, 2], [(4, 5)]),
        ([0, 1, 1, 0], [8, 3, 8, 3], [(2, 0), (1, 3)]),
        # What could not be graded is neither right nor wrong; half right is wrong.
        ([NAN, 1, NAN, 0.5], [0, 0, 1, 0], [(1, 3)]),
        # One side only, or nobody.
        ([1, 1, 1], [0, 1, 2], []),
        ([0, 0, 1, 1], [0, 0, 1, 1], []),
        ([], [], []),
    ],
)
def test_pairs_by_hand(scores: list[float], groups: list[int], pairs: list[tuple[int, int]]) -> None:
    assert _contrasts(scores, groups) == pairs


@pytest.mark.parametrize("group_size", [2, 5])
def test_pairs_of_any_batch(group_size: int) -> None:
    for seed in range(50):
        random = Random(seed)
        groups = [group for group in range(random.randrange(2, 9)) for _ in range(group_size)]
        random.shuffle(groups)
        scores = [random.choice([0.0, 1.0, NAN]) for _ in groups]
        pairs = _contrasts(scores, groups)
        assert all(scores[right] == 1 and scores[wrong] == 0 for right, wrong in pairs)
        assert all(groups[right] == groups[wrong] for right, wrong in pairs)
        both = {group for group in groups if {1.0, 0.0} <= {scores[row] for row, name in enumerate(groups) if name == group}}
        assert sorted(groups[right] for right, _ in pairs) == sorted(both)


@pytest.mark.parametrize("sampling", [{"prompts": 24, "group_size": 1}, {"prompts": 6, "group_size": 4}])
def test_a_response_is_shown_beside_the_prompt_it_answers(tmp_path: Path, sampling: dict[str, Any]) -> None:
    """Also where training asks each prompt once.

    Read back and graded again as an answer to the prompt it is shown with, every response has the score it is shown with.
    """
    config = small_config(recipe="remax", sampling=sampling)
    trainer = trainer_of(config)
    shown = showcase(config, trainer.policy, trainer.task, MethodState(), pairs=2, problems=16)
    assert [response.score for response in shown] == [1.0, 0.0, 1.0, 0.0]
    asked = trainer.task.problems(16, split="held-out", seed=derive_seed(config.seed, "showcase"))
    by_prompt = {problem.prompt: problem for problem in asked}
    for response in shown:
        text = "".join(piece for piece in response.pieces if piece != "⏎")
        assert trainer.task.grade(by_prompt[response.prompt], text) == response.score
        assert len(response.credit) == len(response.pieces)
    prompts = [response.prompt for response in shown]
    assert prompts[::2] == prompts[1::2]
    assert len(set(prompts)) == 2
