"""Laws of rollout files, each with wrong versions of the code that it must reject."""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st

from laws.harness import Edit, Law, for_all, law_tests_from_edits, loaded_with
from tiny import tiny_policy
from tokencredit.analysis.offline import credit_without_model, offline_config
from tokencredit.errors import ConfigError
from tokencredit.types import Rollouts

MODULES = (
    "rollout_io.schema",
    "rollout_io.load",
    "rollout_io.read",
    "rollout_io.write",
)  # fmt: skip
"""In an order in which every module comes after those that it imports."""

MUTANTS = {
    "groups by position": Edit(
        "rollout_io.read", "numbers.setdefault(row.prompt_ids if row.group is None else row.group, len(numbers))", "index // 3"
    ),
    "groups by prompt though they are named": Edit(
        "rollout_io.read", "row.prompt_ids if row.group is None else row.group", "row.prompt_ids"
    ),
    "JSON lines backwards": Edit(
        "rollout_io.load", "[rows[index] for index in chosen.kept]", "[rows[-1 - index] for index in chosen.kept]"
    ),
    "the mask is not written": Edit("rollout_io.write", '"mask": inside,', '"mask": [True] * length,'),
    "the mask is not read": Edit("rollout_io.schema", 'booleans(location, cells, "mask", length) or', "False or"),
    "an unscored token is certain": Edit("rollout_io.write", "if sampled and value == value else None", "if value == value else 0.0"),
    "a cut response is finished": Edit("rollout_io.schema", "finished=finished is not False", "finished=True"),
    "padding is written": Edit("rollout_io.write", "inside = inside[:length]", "length = len(inside)"),
    "the ungraded failed": Edit(
        "rollout_io.schema",
        "        return math.nan\n    if not isinstance(value, int | float) or",
        "        return 0.0\n    if not isinstance(value, int | float) or",
    ),
    "reward is lost": Edit("rollout_io.schema", "score if math.isnan(reward) else reward", "score"),
    "no end token": Edit("rollout_io.schema", "(*response_ids, ends[0])", "response_ids"),
    "two end tokens": Edit("rollout_io.schema", "and ends and response_ids[-1:] not in [(end,) for end in ends]", "and ends"),
    "cut text ends": Edit("rollout_io.schema", "elif finished is not False and ends", "elif ends"),
}


def files_with(edit: Edit | None = None) -> SimpleNamespace:
    return loaded_with(MODULES, edit)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Rollouts, torch.Tensor]:
    """Responses of uneven length with holes, unscored tokens, ungraded and cut responses; siblings need not be neighbours."""
    rows = draw(st.integers(2, 7))
    seed = draw(st.integers(0, 10**6))
    generator = torch.Generator().manual_seed(seed)

    def rare(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator) < 0.2

    width = draw(st.integers(2, 6))
    mask = torch.arange(width) < torch.randint(1, width + 1, (rows, 1), generator=generator)
    mask &= ~rare(rows, width)
    mask[:, 0] |= ~mask.any(-1)
    behavior = -torch.rand(rows, width, generator=generator, dtype=torch.float64)
    behavior[rare(rows, width)] = torch.nan
    group = torch.randint(0, 3, (rows,), generator=generator)
    group[1] = group[0]
    _, group = torch.unique(group, return_inverse=True)
    first = {int(name): number for number, name in enumerate(dict.fromkeys(group.tolist()))}
    group = torch.tensor([first[int(name)] for name in group])
    score = torch.rand(rows, generator=generator, dtype=torch.float64)
    score[rare(rows)] = torch.nan
    # Groups 0 and 1 ask the same: only their names tell them apart.
    prompts = tuple((3, 4 + max(int(name), 1)) for name in group)
    tokens = torch.randint(3, 20, (rows, width), generator=generator)
    return Rollouts(prompts=prompts, tokens=tokens, mask=mask, group=group, behavior_logp=behavior, finished=~rare(rows)), score


def stored(code: SimpleNamespace, rows: list[dict[str, Any]], suffix: str, policy: Any = None) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rollouts{suffix}"
        code.write_rows(path, rows)
        try:
            return code.read_rollouts(path, policy)
        except ConfigError as problem:
            raise AssertionError(f"a good file is refused: {problem}") from problem


SUFFIXES = st.sampled_from([".parquet", ".jsonl"])


@for_all(batches(), SUFFIXES)
def reading_gives_back_what_was_written(code: SimpleNamespace, batch: tuple[Rollouts, torch.Tensor], suffix: str) -> None:
    rollouts, score = batch
    found = stored(code, code.rollout_rows(rollouts, score, reward=2 * score), suffix)
    width, mask = found.rollouts.mask.shape[1], rollouts.mask
    assert not mask[:, width:].any()
    mask = mask[:, :width]
    assert torch.equal(found.rollouts.mask, mask)
    assert width == int((mask * torch.arange(1, width + 1)).max())
    assert found.rollouts.prompts == rollouts.prompts
    assert torch.equal(found.rollouts.tokens[mask], rollouts.tokens[:, :width][mask])
    assert torch.equal(found.rollouts.group, rollouts.group)
    assert torch.equal(found.rollouts.finished, rollouts.finished)
    assert torch.equal(found.rollouts.behavior_logp[mask].nan_to_num(9), rollouts.behavior_logp[:, :width][mask].nan_to_num(9))
    assert torch.equal(found.score.nan_to_num(9), score.nan_to_num(9))
    assert torch.equal(found.reward.nan_to_num(9), (2 * score).nan_to_num(9))


@for_all(batches(), SUFFIXES, st.integers(0, 99))
def rows_may_stand_in_any_order(code: SimpleNamespace, batch: tuple[Rollouts, torch.Tensor], suffix: str, seed: int) -> None:
    """The credit of a response does not depend on where in the file it stands."""
    rollouts, score = batch
    rows = code.rollout_rows(rollouts, score)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    layers = [{"recipe": "dr-grpo", "credit": {"type": "ntf", "keep": 0.5}}]
    credits: list[torch.Tensor] = []
    for chosen in (rows, [rows[index] for index in order]):
        found = stored(code, chosen, suffix)
        credits.append(credit_without_model(found, offline_config(found, layers)).credit)
    assert torch.allclose(credits[0][order], credits[1], rtol=0, atol=1e-12)


POLICY = tiny_policy()


@for_all(st.text("0123+-=", max_size=4), st.sampled_from([None, True, False]), st.booleans())
def finished_text_ends_once_and_cut_text_never(code: SimpleNamespace, text: str, finished: bool | None, ended: bool) -> None:
    row = {"prompt": "1", "response": text + ("<eos>" if ended else ""), "score": 1.0, "finished": finished}
    if not row["response"] and finished is False:
        return
    found = stored(code, [row], ".jsonl", POLICY)
    ids, end = found.rollouts.tokens[0].tolist(), POLICY.end_tokens[0]
    assert ids.count(end) == (1 if ended or finished is not False else 0)
    assert [token for token in ids if token != end] == POLICY.encode(text)
    assert ids.index(end) == len(ids) - 1 if end in ids else not found.rollouts.finished[0]


LAWS: dict[Law, tuple[str, ...]] = {
    reading_gives_back_what_was_written: (
        "groups by position",
        "groups by prompt though they are named",
        "JSON lines backwards",
        "the mask is not written",
        "the mask is not read",
        "an unscored token is certain",
        "a cut response is finished",
        "padding is written",
        "the ungraded failed",
        "reward is lost",
    ),
    rows_may_stand_in_any_order: ("groups by position",),
    finished_text_ends_once_and_cut_text_never: ("no end token", "two end tokens", "cut text ends"),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(LAWS, files_with, MUTANTS)
