"""Detect a file's format by its columns, and convert the rollouts that TRL and verl log to the columns of a rollout file.

TRL's completions_*.parquet: step, prompt, completion, a column per reward function, columns logged by the user, advantage.
verl's {step}.jsonl of logged generations: input, output, gts, score, step, and columns that the reward function adds.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from tokencredit.errors import ConfigError
from tokencredit.rollout_io.load import Loaded
from tokencredit.rollout_io.schema import COLUMNS, RowLocation, is_missing, list_names, number, shortened, text


class Converted(NamedTuple):
    rows: list[dict[str, Any]]
    """In the columns of a rollout file, one row per row of the source file."""
    notes: tuple[str, ...]
    """What the converter had to assume because the file does not contain it."""


Render = Callable[[list[dict[str, Any]]], str]


def chat_renderer(tokenizer: Any) -> Render:
    """Joins chat messages by the tokenizer's chat template, up to the start of the assistant's reply."""

    def render(messages: list[dict[str, Any]]) -> str:
        if tokenizer.chat_template is None:
            raise ConfigError("the model's tokenizer has no chat template to join messages with; give the model that sampled the rollouts")
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as problem:  # A template is a program and may raise anything.
            raise ConfigError(f"the chat template cannot join {shortened(messages)}: {str(problem)[:300]}") from None

    return render


def _filled(message: Any) -> dict[str, Any]:
    """A table gives every message the keys of all messages; those without a value were absent."""
    return {key: value for key, value in message.items() if value is not None}


def prompt_text(location: RowLocation, prompt: Any, render: Render | None) -> str:
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not all(isinstance(message, dict) for message in prompt):
        raise location.wrong(f"prompt is {shortened(prompt)}; it must be text or a list of chat messages")
    if render is None:
        raise location.wrong("prompt is a list of chat messages, which only the model's chat template can join; give --model DIR")
    try:
        return render([_filled(message) for message in prompt])
    except ConfigError as problem:
        raise location.wrong(str(problem)) from None


def response_text(location: RowLocation, completion: Any) -> str:
    """The text that the policy wrote: the completion itself, or the content of its one assistant message, without the template."""
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, list) or not all(isinstance(message, dict) for message in completion):
        raise location.wrong(f"completion is {shortened(completion)}; it must be text or a list of chat messages")
    messages = [_filled(message) for message in completion]
    plain = len(messages) == 1 and set(messages[0]) == {"role", "content"} and isinstance(messages[0]["content"], str)
    if not plain or messages[0]["role"] != "assistant":
        raise location.wrong(
            f"completion is {shortened(messages)}; only one assistant message of plain text can be converted back to the policy's text "
            "(tool turns and parsed messages need response_ids and mask)"
        )
    return messages[0]["content"]


TRL_COLUMNS = frozenset({"prompt", "completion", "advantage"})
TRL_NOTE = (
    "TRL's log has no end tokens and does not mark truncated responses: every response is taken as finished, and its text is encoded anew"
)


def from_trl(loaded: Loaded, *, score: str | None, render: Render | None) -> Converted:
    chosen = _score_columns(loaded, score)
    rows: list[dict[str, Any]] = []
    for location, row in zip(loaded.locations, loaded.rows, strict=True):
        rows.append(
            {
                "step": row.get("step"),
                "prompt": prompt_text(location, row.get("prompt"), render),
                "response": response_text(location, row.get("completion")),
                "score": _sum([number(location, row, column) for column in chosen]),
                "advantage": number(location, row, "advantage"),
            }
        )
    source = list_names(chosen) if len(chosen) == 1 else f"the plain sum of {list_names(chosen)} (TRL's reward weights are not in the file)"
    return Converted(rows, (TRL_NOTE, f"score is {source}"))


def _sum(rewards: Sequence[float]) -> float:
    """TRL's sum: a reward function that did not apply is left out; NaN where none applied."""
    given = [reward for reward in rewards if not math.isnan(reward)]
    return sum(given) if given else math.nan


def _score_columns(loaded: Loaded, requested: str | None) -> list[str]:
    """The columns whose sum is the score. Nothing marks a reward function's column, but only columns of numbers can be rewards."""

    def only_numbers(column: str) -> bool:
        values = [row.get(column) for row in loaded.rows]
        return all(is_missing(value) or isinstance(value, int | float) for value in values) and not all(
            is_missing(value) for value in values
        )

    numeric = [column for column in loaded.columns if column not in TRL_COLUMNS | {"step"} and only_numbers(column)]
    if requested is not None and requested in loaded.columns:
        return [requested]
    there = list_names(numeric) or "none"
    if requested not in (None, "sum"):
        raise ConfigError(f"score column {requested!r} is not in {loaded.path}; columns of numbers are: {there}")
    if not numeric:
        raise ConfigError(f"{loaded.path} has no column of rewards; it holds {list_names(loaded.columns)}")
    if requested is None and len(numeric) > 1:
        raise ConfigError(
            f"{loaded.path} has {len(numeric)} columns of numbers that may be the score: {there}; "
            "choose one with `tokencredit convert --score COLUMN`, or --score sum for their sum"
        )
    return numeric


VERL_COLUMNS = frozenset({"input", "output", "score"})
VERL_NOTE = (
    "verl's log has no special tokens: the end token and the chat template's markers are lost, every response is taken as "
    "finished, and its text is encoded anew"
)


def from_verl(loaded: Loaded, *, score: str | None) -> Converted:
    column = score or "score"
    if column not in loaded.columns:
        raise ConfigError(f"score column {column!r} is not in {loaded.path}; it holds {list_names(loaded.columns)}")
    rows: list[dict[str, Any]] = []
    for location, row in zip(loaded.locations, loaded.rows, strict=True):
        prompt, response = text(location, row, "input"), text(location, row, "output")
        if prompt is None or response is None:
            raise location.wrong(f"{'input' if prompt is None else 'output'} is missing; verl writes both as text")
        rows.append(
            {
                "step": row.get("step"),
                "prompt": prompt,
                "response": response,
                "score": number(location, row, column),
                "answer": _answer(location, row.get("gts")),
            }
        )
    return Converted(rows, (VERL_NOTE,) if score is None else (VERL_NOTE, f"score is {column}"))


def _answer(location: RowLocation, truth: Any) -> str | None:
    try:
        return truth if truth is None or isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # a date, bytes, or lists nested too deeply
        raise location.wrong(f"gts is {shortened(truth)}, which cannot be written as JSON; give text") from None


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
        f"{loaded.path} is not a rollout file: it holds {list_names(loaded.columns)}; ours has prompt, response and score, "
        + ", ".join(f"{name}'s {list_names(sorted(marks))}" for name, marks in MARKS.items())
    )


def convert_rows(loaded: Loaded, kind: Foreign, *, score: str | None = None, render: Render | None = None) -> Converted:
    absent = MARKS[kind] - set(loaded.columns) - ({"score"} if score else set())
    if absent:
        raise ConfigError(
            f"{loaded.path} is not in {kind}'s format: it has no {list_names(sorted(absent))}; it holds {list_names(loaded.columns)}"
        )
    return from_trl(loaded, score=score, render=render) if kind == "trl" else from_verl(loaded, score=score)


def known_columns(loaded: Loaded) -> Converted:
    """Rows of our own format, without columns that are not in `COLUMNS`; a note names those."""
    unknown = [column for column in loaded.columns if column not in COLUMNS]
    rows = [{column: value for column, value in row.items() if column in COLUMNS} for row in loaded.rows]
    return Converted(rows, (f"{len(unknown)} other columns are not read: {list_names(unknown)}",) if unknown else ())
