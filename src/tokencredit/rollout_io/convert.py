"""What a converter hands back.

Chat messages as the text a model is given.

TRL's completions_*.parquet: step, prompt, completion, a column per reward function, columns logged by the user, advantage.

verl's {step}.jsonl of logged generations: input, output, gts, score, step, and what the reward function adds.

Which format a file is in, told by its columns; any of them in the columns of a rollout file.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from tokencredit.errors import ConfigError
from tokencredit.rollout_io.load import Loaded
from tokencredit.rollout_io.schema import COLUMNS, Place, is_missing, listed, number, shortened, text


class Converted(NamedTuple):
    rows: list[dict[str, Any]]
    """In the columns of a rollout file, one for one."""
    notes: tuple[str, ...]
    """What the file could not tell, in words."""


Render = Callable[[list[dict[str, Any]]], str]


def chat_renderer(tokenizer: Any) -> Render:
    """Messages to text by the tokenizer's chat template, up to where the assistant begins to write."""

    def render(messages: list[dict[str, Any]]) -> str:
        if tokenizer.chat_template is None:
            raise ConfigError("the model's tokenizer has no chat template to join messages with; take the model the rollouts came from")
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as problem:  # a template is a program of its own and may raise anything
            raise ConfigError(f"the chat template cannot join {shortened(messages)}: {str(problem)[:300]}") from None

    return render


def _filled(message: Any) -> dict[str, Any]:
    """A table gives every message the keys of all; those without a value were not there."""
    return {key: value for key, value in message.items() if value is not None}


def prompt_text(place: Place, prompt: Any, render: Render | None) -> str:
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not all(isinstance(message, dict) for message in prompt):
        raise place.wrong(f"prompt is {shortened(prompt)}; text or a list of chat messages was expected")
    if render is None:
        raise place.wrong("prompt is a list of chat messages, which only the model's chat template can join; give --model DIR")
    try:
        return render([_filled(message) for message in prompt])
    except ConfigError as problem:
        raise place.wrong(str(problem)) from None


def response_text(place: Place, completion: Any) -> str:
    """Text, or the content of one assistant message: that is what the policy wrote, whatever the template puts around it."""
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, list) or not all(isinstance(message, dict) for message in completion):
        raise place.wrong(f"completion is {shortened(completion)}; text or a list of chat messages was expected")
    messages = [_filled(message) for message in completion]
    plain = len(messages) == 1 and set(messages[0]) == {"role", "content"} and isinstance(messages[0]["content"], str)
    if not plain or messages[0]["role"] != "assistant":
        raise place.wrong(
            f"completion is {shortened(messages)}; only one assistant message of plain text can be turned back into what the policy "
            "wrote (tool turns and parsed messages need response_ids and mask)"
        )
    return messages[0]["content"]


TRL_COLUMNS = frozenset({"prompt", "completion", "advantage"})
TRL_NOTE = (
    "TRL logs text without end tokens and without saying which responses were cut: every response is taken as finished, "
    "and its text is encoded anew"
)


def from_trl(loaded: Loaded, *, score: str | None, render: Render | None) -> Converted:
    chosen = _score_columns(loaded, score)
    rows: list[dict[str, Any]] = []
    for place, row in zip(loaded.places, loaded.rows, strict=True):
        rows.append(
            {
                "step": row.get("step"),
                "prompt": prompt_text(place, row.get("prompt"), render),
                "response": response_text(place, row.get("completion")),
                "score": _sum([number(place, row, column) for column in chosen]),
                "advantage": number(place, row, "advantage"),
            }
        )
    said = listed(chosen) if len(chosen) == 1 else f"the plain sum of {listed(chosen)} (TRL's reward weights are not in the file)"
    return Converted(rows, (TRL_NOTE, f"score is {said}"))


def _sum(rewards: Sequence[float]) -> float:
    """As TRL adds them: a function that did not apply is left out; NaN where none applied."""
    given = [reward for reward in rewards if not math.isnan(reward)]
    return sum(given) if given else math.nan


def _score_columns(loaded: Loaded, asked: str | None) -> list[str]:
    """Reward functions and columns logged by the user look alike; only numbers can be rewards."""

    def only_numbers(column: str) -> bool:
        values = [row.get(column) for row in loaded.rows]
        return all(is_missing(value) or isinstance(value, int | float) for value in values) and not all(
            is_missing(value) for value in values
        )

    numeric = [column for column in loaded.columns if column not in TRL_COLUMNS | {"step"} and only_numbers(column)]
    if asked is not None and asked in loaded.columns:
        return [asked]
    there = listed(numeric) or "none"
    if asked not in (None, "sum"):
        raise ConfigError(f"score column {asked!r} is not in {loaded.path}; columns of numbers are: {there}")
    if not numeric:
        raise ConfigError(f"{loaded.path} has no column of rewards; it holds {listed(loaded.columns)}")
    if asked is None and len(numeric) > 1:
        raise ConfigError(
            f"{loaded.path} has {len(numeric)} columns of numbers that may be the score: {there}; "
            "choose one with `tokencredit convert --score COLUMN`, or --score sum for their sum"
        )
    return numeric


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


Foreign = Literal["trl", "verl"]
Format = Literal["tokencredit", "trl", "verl"]

MARKS: dict[Foreign, frozenset[str]] = {"trl": TRL_COLUMNS, "verl": VERL_COLUMNS}


def format_of(loaded: Loaded) -> Format:
    columns = set(loaded.columns)
    if columns & {"response", "response_ids"}:
        return "tokencredit"
    for name in get_args(Foreign):
        if columns >= MARKS[name]:
            return name
    raise ConfigError(
        f"{loaded.path} is no rollout file: it holds {listed(loaded.columns)}; ours has prompt, response and score, "
        + ", ".join(f"{name}'s {listed(sorted(marks))}" for name, marks in MARKS.items())
    )


def convert_rows(loaded: Loaded, kind: Foreign, *, score: str | None = None, render: Render | None = None) -> Converted:
    absent = MARKS[kind] - set(loaded.columns) - ({"score"} if score else set())
    if absent:
        raise ConfigError(f"{loaded.path} is not {kind}'s: it has no {listed(sorted(absent))}; it holds {listed(loaded.columns)}")
    return from_trl(loaded, score=score, render=render) if kind == "trl" else from_verl(loaded, score=score)


def known_columns(loaded: Loaded) -> Converted:
    """Rows of our own format without columns that mean nothing here."""
    unknown = [column for column in loaded.columns if column not in COLUMNS]
    rows = [{column: value for column, value in row.items() if column in COLUMNS} for row in loaded.rows]
    return Converted(rows, (f"{len(unknown)} other columns are not read: {listed(unknown)}",) if unknown else ())
