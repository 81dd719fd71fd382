"""verl's {step}.jsonl of logged generations: input, output, gts, score, step, and what the reward function adds."""

import json
from typing import Any

from tokencredit.errors import ConfigError
from tokencredit.rollout_io.converted import Converted
from tokencredit.rollout_io.load import Loaded
from tokencredit.rollout_io.schema import Place, listed, number, shortened, text

VERL_COLUMNS = frozenset({"input", "output", "score"})
VERL_NOTE = (
    "verl logs text without special tokens: the end token and the marks of a chat template are lost, every response is taken as "
    "finished, and text is encoded anew"
)


def from_verl(loaded: Loaded, *, score: str | None) -> Converted:
    column = score or "score"
    if column not in loaded.columns:
        raise ConfigError(f"score column {column!r} is not in {loaded.path}; it holds {listed(loaded.columns)}")
    rows: list[dict[str, Any]] = []
    for place, row in zip(loaded.places, loaded.rows, strict=True):
        prompt, response = text(place, row, "input"), text(place, row, "output")
        if prompt is None or response is None:
            raise place.wrong(f"{'input' if prompt is None else 'output'} is missing; verl writes both as text")
        rows.append(
            {
                "step": row.get("step"),
                "prompt": prompt,
                "response": response,
                "score": number(place, row, column),
                "answer": _answer(place, row.get("gts")),
            }
        )
    return Converted(rows, (VERL_NOTE,) if score is None else (VERL_NOTE, f"score is {column}"))


def _answer(place: Place, truth: Any) -> str | None:
    try:
        return truth if truth is None or isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # a date, bytes, lists in lists without end
        raise place.wrong(f"gts is {shortened(truth)}, which cannot be written as JSON; give text") from None
