"""Everything verl wants to find on disk for the embedded task: model, tokenizer with a chat template, problems."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tokencredit.models import model_folder
from tokencredit.tasks.protocol import Problem
from tokencredit.tasks.steps import Steps

PASS_THROUGH = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template that adds nothing, so that a prompt has the token ids it has elsewhere."""


class Scene(NamedTuple):
    model: Path
    train: Path
    held_out: Path
    reward: Path
    prompt_tokens: int
    """Longest prompt."""


def _write_problems(file: Path, problems: Sequence[Problem]) -> Path:
    rows = [
        {
            "data_source": "steps",
            "prompt": [{"role": "user", "content": problem.prompt}],
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"index": index, "prompt": problem.prompt},
        }
        for index, problem in enumerate(problems)
    ]
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file


def make_scene(folder: Path, *, problems: int, held_out: int = 8, task: Steps | None = None, seed: int = 0) -> Scene:
    """Into a new folder; `problems` to train on and `held_out` for validation."""
    task = task or Steps()
    model = folder / "model"
    shutil.copytree(model_folder("steps-shift"), model)
    (model / "chat_template.jinja").write_text(PASS_THROUGH)
    train, other = task.problems(problems, split="train", seed=seed), task.problems(held_out, split="held-out", seed=seed)
    return Scene(
        model=model,
        train=_write_problems(folder / "train.parquet", train),
        held_out=_write_problems(folder / "held_out.parquet", other),
        reward=Path(__file__).with_name("reward.py"),
        # The tokenizer reads characters.
        prompt_tokens=max(len(problem.prompt) for problem in (*train, *other)),
    )
