"""The packed row against one laid out token by token."""

from typing import NamedTuple

import pytest
import torch

from engine.packed_cases import CASES, LONG, SHORT, Rows, ragged
from tokencredit.forward import packing
from tokencredit.forward.packing import PackedLayout, pack

CPU = torch.device("cpu")


class Naive(NamedTuple):
    """Of each sampled token: where it stands, what it is, and what its predictor sees: tokens with their positions, itself last."""

    place: list[int]
    targets: list[int]
    seen: list[list[tuple[int, int]]]


def naive(rows: Rows) -> Naive:
    place, targets, seen = [], [], []
    for row, prompt in enumerate(rows.prompts):
        whole = [*prompt, *rows.tokens[row].tolist()]
        for column in range(rows.mask.shape[1]):
            if rows.mask[row, column]:
                place.append(row * rows.mask.shape[1] + column)
                targets.append(whole[len(prompt) + column])
                seen.append([(whole[at], at) for at in range(len(prompt) + column)])
    return Naive(place, targets, seen)


def seen_by(layout: PackedLayout) -> list[list[tuple[int, int]]]:
    """What each head row attends to, read off the layout: the keys of its segment, up to as many from the end as it is."""
    segments, ids, positions = layout.segments, layout.ids[0].tolist(), layout.positions[0].tolist()
    source = list(range(len(ids))) if segments.shared is None else segments.shared.source.tolist()
    found = []
    for query in layout.head_rows.tolist():
        segment = int((segments.query_starts <= query).sum()) - 1
        from_end = int(segments.query_starts[segment + 1]) - query
        keys = range(int(segments.key_starts[segment]), int(segments.key_starts[segment + 1]) - from_end + 1)
        found.append([(ids[source[key]], positions[source[key]]) for key in keys])
        assert source[keys[-1]] == query
    return found


@pytest.mark.parametrize("pays", [1.0, 0.0], ids=["sharing", "apart"])
@pytest.mark.parametrize("case", CASES)
def test_every_sampled_token_is_predicted_from_its_own_prompt_and_prefix(monkeypatch: pytest.MonkeyPatch, case: str, pays: float) -> None:
    monkeypatch.setattr(packing, "SHARING_PAYS", pays)
    rows = CASES[case]
    layout, known = pack(*rows, CPU), naive(rows)
    assert layout.flat_index.tolist() == known.place
    assert layout.targets.tolist() == known.targets
    assert seen_by(layout) == known.seen
    assert layout.shape == tuple(rows.mask.shape)


@pytest.mark.parametrize("pays", [0.95, 0.0], ids=["sharing", "apart"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_packed_that_nobody_needs(monkeypatch: pytest.MonkeyPatch, case: str, pays: float) -> None:
    """A token is an input where a sampled token comes after it, a prompt once, or once for each row that has a sampled token."""
    monkeypatch.setattr(packing, "SHARING_PAYS", pays)
    rows = CASES[case]
    extent = [max((column + 1 for column in range(rows.mask.shape[1]) if mask[column]), default=0) for mask in rows.mask]
    read = [prompt for prompt, long in zip(rows.prompts, extent, strict=True) if long]
    prompts = set(read) if pays else read
    assert pack(*rows, CPU).ids.shape[1] == sum(map(len, prompts)) + sum(max(0, long - 1) for long in extent)


@pytest.mark.parametrize("case", CASES)
def test_lengths_and_copies_say_the_same(case: str) -> None:
    segments = pack(*CASES[case], CPU).segments
    assert segments.query_starts.dtype == segments.key_starts.dtype == torch.int32
    for starts, lengths, longest in (
        (segments.query_starts, segments.query_lengths, segments.longest_query),
        (segments.key_starts, segments.key_lengths, segments.longest_key),
    ):
        assert starts.diff().tolist() == list(lengths)
        assert min(lengths) > 0
        assert max(lengths) == longest
    if segments.shared is None:
        assert segments.query_lengths == segments.key_lengths
        return
    source, own, copy, copied, prompt_tokens = segments.shared
    assert torch.equal(source[own], torch.arange(sum(segments.query_lengths)))
    assert torch.equal(source[copy], copied)
    assert sorted([*own.tolist(), *copy.tolist()]) == list(range(len(source)))
    assert max(copied.tolist()) < prompt_tokens


def test_prompts_are_shared_where_that_saves_enough() -> None:
    assert pack(*ragged([LONG] * 4, [3] * 4), CPU).segments.shared is not None
    assert pack(*ragged([LONG, SHORT], [3, 3]), CPU).segments.shared is None
    assert pack(*ragged([(3,)] * 4, [20] * 4), CPU).segments.shared is None
    # Of three rows with one prompt two say nothing: it is read once anyway.
    assert pack(*ragged([LONG] * 3, [0, 4, 0]), CPU).segments.shared is None


def test_no_sampled_token_is_no_input() -> None:
    layout = pack(*ragged([LONG, SHORT], [0, 0], width=3), CPU)
    assert layout.ids.shape[1] == 0
    assert len(layout.flat_index) == 0
    assert pack([LONG], torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 0, dtype=torch.bool), CPU).shape == (1, 0)


def test_an_empty_prompt_is_refused_by_its_row() -> None:
    with pytest.raises(ValueError, match="the prompt of response 1 is empty"):
        pack(*ragged([LONG, ()], [3, 3]), CPU)
