"""Rollout files, known answers: what is read is what was written, and what a row leaves out is filled as the page says."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tiny import made_up_rollouts, tiny_policy
from tokencredit.policy.policy import Policy
from tokencredit.rollout_io.read import StoredRollouts, read_rollouts
from tokencredit.rollout_io.write import rollout_rows, write_rows

HOSTILE = 'a\nb\r\n\t"quoted" \\ \u2028 é 🙂 \x00 <eos> 漢字'


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ids_row(**changes: Any) -> dict[str, Any]:
    return {"prompt_ids": [3, 4], "response_ids": [5, 6, 7], "score": 1.0, **changes}


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_what_is_read_is_what_was_written(tmp_path: Path, suffix: str) -> None:
    rollouts = made_up_rollouts()
    rollouts = rollouts.select(rollouts.mask.any(-1).nonzero()[:, 0])
    rows = len(rollouts.prompts)
    score = torch.arange(rows, dtype=torch.float64) / 7
    score[3] = torch.nan
    classes = [[f"{row}/{place}" for place in range(int(rollouts.mask[row].sum()))] for row in range(rows)]
    path = tmp_path / f"rollouts{suffix}"
    write_rows(
        path,
        rollout_rows(
            rollouts,
            score,
            reward=score - 0.25,
            advantage=-score,
            token_class=classes,
            prompts=[HOSTILE] * rows,
            responses=[f"{HOSTILE}{row}" for row in range(rows)],
            answers=[None if row % 2 else str(row) for row in range(rows)],
            step=11,
        ),
    )
    stored = read_rollouts(path)
    found, mask = stored.rollouts, rollouts.mask
    assert found.prompts == rollouts.prompts
    assert torch.equal(found.mask, mask)
    assert torch.equal(found.tokens[mask], rollouts.tokens[mask])
    assert torch.equal(found.group, rollouts.group)
    assert torch.equal(found.finished, rollouts.finished)
    torch.testing.assert_close(found.behavior_logp[mask], rollouts.behavior_logp[mask], rtol=0, atol=0, equal_nan=True)
    for left, right in ((stored.score, score), (stored.reward, score - 0.25), (stored.advantage, -score)):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    assert stored.token_class == tuple(tuple(names) for names in classes)
    assert stored.prompts == (HOSTILE,) * rows
    assert stored.responses[4] == f"{HOSTILE}4"
    assert stored.answers[:2] == ("0", None)
    assert (stored.step, stored.logp_known, stored.notes) == (11, True, ())


def test_what_a_row_leaves_out(tmp_path: Path) -> None:
    stored = read_rollouts(lines(tmp_path / "r.jsonl", ids_row(), ids_row(response_ids=[5], score=None)))
    assert stored.rollouts.mask.tolist() == [[True, True, True], [True, False, False]]
    assert stored.rollouts.group.tolist() == [0, 0]
    assert stored.rollouts.finished.tolist() == [True, True]
    assert stored.score[0] == 1
    assert math.isnan(float(stored.score[1]))
    assert stored.reward[0] == 1
    assert not stored.logp_known
    assert "log-probs stand in for the sampler's" in stored.notes[0]
    assert bool(stored.rollouts.behavior_logp[stored.rollouts.mask].isnan().all())
    assert (stored.advantage, stored.token_class, stored.step, stored.prompts) == (None, None, None, (None, None))


def test_groups_are_named_or_prompts_of_one_step(tmp_path: Path) -> None:
    def groups(*rows: dict[str, Any], step: int | None = None) -> list[int]:
        return read_rollouts(lines(tmp_path / "r.jsonl", *rows), step=step).rollouts.group.tolist()

    assert groups(ids_row(), ids_row(prompt_ids=[9]), ids_row()) == [0, 1, 0]
    assert groups(ids_row(group="b"), ids_row(group="a"), ids_row(group="b")) == [0, 1, 0]
    assert groups(ids_row(group=7), ids_row(group=7.0), ids_row(group="7")) == [0, 0, 0]
    assert groups(ids_row(step=1), ids_row(step=2, prompt_ids=[9]), ids_row(step=2), step=2) == [0, 1]


def read_one(tmp_path: Path, policy: Policy, **row: Any) -> StoredRollouts:
    return read_rollouts(lines(tmp_path / "r.jsonl", {"prompt": "1+2=", "score": 0, **row}), policy)


def test_text_is_encoded_and_a_finished_one_ends(tmp_path: Path, policy: Policy) -> None:
    end = policy.end_tokens[0]

    def ids(**row: Any) -> list[int]:
        return read_one(tmp_path, policy, **row).rollouts.tokens[0].tolist()

    body = policy.encode("12")
    assert ids(response="12") == ids(response="12", finished=True) == ids(response="12<eos>") == [*body, end]
    assert ids(response="12", finished=False) == body
    assert ids(response="") == [end]
    assert read_one(tmp_path, policy, response="12").rollouts.prompts == (tuple(policy.encode("1+2=")),)
    assert read_one(tmp_path, policy, response="12").rollouts.finished.tolist() == [True]
    assert read_one(tmp_path, policy, response="12", finished=False).rollouts.finished.tolist() == [False]


def test_ids_win_over_text_and_tell_whether_they_end(tmp_path: Path, policy: Policy) -> None:
    end = policy.end_tokens[0]
    stored = read_one(tmp_path, policy, response="12", response_ids=[5, 6])
    assert stored.rollouts.tokens.tolist() == [[5, 6]]
    assert stored.rollouts.finished.tolist() == [False]
    assert stored.responses == ("12",)
    stored = read_one(tmp_path, policy, response_ids=[5, 6, end])
    assert stored.rollouts.finished.tolist() == [True]
    assert stored.responses == (policy.decode([5, 6, end]),)
    assert read_one(tmp_path, policy, response_ids=[5], finished=True).rollouts.finished.tolist() == [True]


def test_masked_log_probs_and_null_ones(tmp_path: Path) -> None:
    row = ids_row(mask=[1, 0, 1], logp=[-1.5, None, None], token_class=["a", "tool", "b"])
    stored = read_rollouts(lines(tmp_path / "r.jsonl", row))
    assert stored.rollouts.mask.tolist() == [[True, False, True]]
    assert stored.rollouts.loss_mask.tolist() == [[True, False, False]]
    assert stored.token_class == (("a", "b"),)


def test_other_columns_are_counted_and_named(tmp_path: Path) -> None:
    stored = read_rollouts(lines(tmp_path / "r.jsonl", ids_row(colour="red", weight=2, logp=[-1, -1, -1])))
    assert stored.notes == ("2 other columns are not read: colour, weight",)


def test_parquet_rows_of_one_step_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    write_rows(path, [{"step": step, **ids_row(score=step / 10, group="g")} for step in (1, 2, 2, 3)])
    assert read_rollouts(path, step=2).score.tolist() == [0.2, 0.2]
    write_rows(path, [{"step": step, **ids_row(logp=[-1.0] * size)} for step, size in ((1, 3), (2, 3), (2, 2))], force=True)
    with pytest.raises(ValueError, match=r"r.parquet, row 3: logp holds 2 log-probs"):
        read_rollouts(path, step=2)
