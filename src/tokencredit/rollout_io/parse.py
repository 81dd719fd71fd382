"""One row of a rollout file -> the tokens of one response and what is known of it."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from tokencredit.rollout_io.schema import Place, group_name, log_probs, number, switch, switches, text, token_ids, words


class Reading(Protocol):
    """What reading needs of a policy: text to ids and back, and how many ids there are."""

    @property
    def tokenizer(self) -> Any: ...

    @property
    def model(self) -> Any: ...

    @property
    def end_tokens(self) -> tuple[int, ...]: ...

    def encode(self, text: str) -> list[int]: ...


class StoredRow(NamedTuple):
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    logp: tuple[float, ...] | None
    finished: bool
    score: float
    reward: float
    advantage: float
    token_class: tuple[str, ...] | None
    group: str | None
    prompt: str | None
    response: str | None
    answer: str | None


def parse_row(place: Place, cells: Mapping[str, Any], policy: Reading | None, *, named_groups: bool) -> StoredRow:
    finished = switch(place, cells, "finished")
    prompt_ids = _ids(place, cells, "prompt", policy)
    if not prompt_ids:
        raise place.wrong("prompt has no tokens; a response must answer something")
    response_ids = _ids(place, cells, "response", policy)
    ends = () if policy is None else policy.end_tokens
    if cells.get("response_ids") is not None:
        finished = (not ends or response_ids[-1:] in [(end,) for end in ends]) if finished is None else finished
    elif finished is not False and ends and response_ids[-1:] not in [(end,) for end in ends]:
        finished, response_ids = True, (*response_ids, ends[0])
    if not response_ids:
        raise place.wrong("response has no tokens; leave the row out")
    length = len(response_ids)
    mask = switches(place, cells, "mask", length) or (True,) * length
    if not any(mask):
        raise place.wrong("mask marks no token as sampled by the policy; leave the row out")
    score = number(place, cells, "score")
    reward = number(place, cells, "reward")
    return StoredRow(
        prompt_ids=prompt_ids,
        response_ids=response_ids,
        mask=mask,
        logp=log_probs(place, cells, "logp", length),
        finished=finished is not False,
        score=score,
        reward=score if math.isnan(reward) else reward,
        advantage=number(place, cells, "advantage"),
        token_class=words(place, cells, "token_class", length),
        group=group_name(place, cells, "group") if named_groups else None,
        prompt=_text(place, cells, "prompt", prompt_ids, policy),
        response=_text(place, cells, "response", response_ids, policy),
        answer=text(place, cells, "answer"),
    )


def _ids(place: Place, cells: Mapping[str, Any], column: str, policy: Reading | None) -> tuple[int, ...]:
    """The ids as given, or those of the text."""
    given, written = token_ids(place, cells, f"{column}_ids"), text(place, cells, column)
    if given is not None:
        if policy is not None and given and max(given) >= (size := policy.model.get_input_embeddings().weight.shape[0]):
            raise place.wrong(
                f"{column}_ids holds {max(given)} but the model knows ids below {size}; take the model the rollouts came from"
            )
        return given
    if written is None:
        raise place.wrong(f"{column} and {column}_ids are both missing; give one of them")
    if policy is None:
        raise place.wrong(f"{column} is text, which needs a tokenizer; give --model DIR, or {column}_ids")
    ids = tuple(policy.encode(written))
    unknown = policy.tokenizer.unk_token_id
    if unknown is not None and unknown in ids:
        raise place.wrong(f"{column} is {written!r:.60}, which the model's tokenizer cannot write; take the model the rollouts came from")
    return ids


def _text(place: Place, cells: Mapping[str, Any], column: str, ids: tuple[int, ...], policy: Reading | None) -> str | None:
    written = text(place, cells, column)
    if written is not None or policy is None:
        return written
    kept = ids[:-1] if ids[-1] in policy.end_tokens else ids
    return str(policy.tokenizer.decode(list(kept), skip_special_tokens=False))
