"""The anatomy of failures where the truth is known: only the first token decides, so uniform credit is wasted on all others."""

import json
from typing import Any

import pytest
import torch

from lab.first_token_decides import RIGHT, subject
from tokencredit.lab.credit.agreement import anatomy_record, worst_examples
from tokencredit.lab.credit.measure import Clock, Measured, measure_credit
from tokencredit.lab.credit.quality import redrawn
from tokencredit.lab.credit.recipes import BASELINE, ORACLE, CreditOrder, find_methods
from tokencredit.lab.credit.run import in_json
from tokencredit.trainer.token_table import TokenLabels, label_tokens

ORDER = CreditOrder(prompts=6, continuations=24, resamples=20, examples=3)


def nobody(what: str, done: int, total: int) -> None:
    """Is told."""


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure_credit(subject(), ORDER, find_methods("grpo,gspo,ntf"), nobody, Clock())


def row_of(record: dict[str, Any], method: str) -> dict[str, Any]:
    return next(row for row in record["rows"] if row["method"] == method)


def again(measured: Measured, credits: dict[str, torch.Tensor], **changed: int) -> dict[str, Any]:
    world = subject()
    labels = label_tokens(world.policy, world.task, measured.batch.problems, measured.batch.rollouts)
    same, times = {name: name for name in credits}, redrawn(ORDER.prompts, draws=5, seed=0)
    return anatomy_record(measured.batch, measured.truth, labels, credits, same, times, ORDER._replace(**changed))


def test_uniform_credit_lies_where_the_tokens_lie(measured: Measured) -> None:
    found = row_of(measured.record["anatomy"], BASELINE)
    score, mask, given = measured.batch.score, measured.batch.rollouts.mask, measured.assigned[BASELINE].credit.abs()
    for side, rows in (("right", score == 1), ("wrong", score == 0)):
        first, all_tokens = given[rows, 0].sum(), (given * mask)[rows].sum()
        assert found[side]["undecided"]["value"] >= 1 - float(first / all_tokens) - 1e-9
        # A response's first token is what made it right or wrong, and its advantage has that sign.
        assert found[side]["against"]["value"] == 0
        assert 0 < found[side]["agreeing"]["value"] <= float(first / all_tokens) + 1e-9


def test_a_credit_that_is_right_wrong_or_absent_at_the_token_that_decides(measured: Measured) -> None:
    first = torch.zeros_like(measured.truth.advantage)
    first[:, 0] = measured.truth.advantage[:, 0]
    later = measured.batch.rollouts.mask.double()
    later[:, 0] = 0
    record = again(measured, {BASELINE: measured.assigned[BASELINE].credit, "perfect": first, "backwards": -first, "blind": later})
    for side in ("right", "wrong"):
        perfect, backwards, blind = (row_of(record, name)[side] for name in ("perfect", "backwards", "blind"))
        assert (perfect["against"]["value"], perfect["missed"]["value"]) == (0, 0)
        assert (backwards["agreeing"]["value"], backwards["missed"]["value"]) == (0, 0)
        assert perfect["agreeing"]["value"] == pytest.approx(backwards["against"]["value"])
        assert (blind["undecided"]["value"], blind["missed"]["value"]) == (1, 1)
    worst = {name: row_of(record, name)["examples"][0] for name in ("perfect", "backwards", "blind")}
    assert [worst[name]["disagreement"] for name in worst] == [pytest.approx(0, abs=1e-9), pytest.approx(2), pytest.approx(1)]
    assert [worst[name]["kind"][0] for name in worst] == ["agreeing", "against", "missed"]
    assert set(worst["blind"]["kind"][1:]) <= {"undecided"}


def test_examples_hold_what_was_measured(measured: Measured) -> None:
    record, batch, world = measured.record["anatomy"], measured.batch, subject()
    assert [one["method"] for one in record["rows"] if one["examples"]] == [BASELINE, "grpo x random 0.8-1.2", "ntf"]
    assert row_of(record, "gspo")["same_credit_as"] == BASELINE
    used = set()
    for row in record["rows"]:
        ranks = [example["rank"] for example in row["examples"]]
        assert ranks == sorted(ranks)
        for example in row["examples"]:
            used.add(example["response"])
            kept = record["responses"][example["response"]]
            at, own = kept["row"], batch.rollouts.mask[kept["row"]]
            given = measured.assigned[row["method"]].credit
            assert example["credit"] == pytest.approx(given[at][own].tolist(), rel=1e-3)
            assert kept["baseline_credit"] == pytest.approx(measured.assigned[BASELINE].credit[at][own].tolist(), rel=1e-3)
            assert kept["truth"] == pytest.approx(measured.truth.advantage[at][own].tolist(), rel=1e-3)
            assert kept["standard_error"] == pytest.approx(measured.truth.variance[at][own].sqrt().tolist(), rel=1e-3)
            assert kept["probability"] == pytest.approx(batch.evidence.logp[at][own].exp().tolist(), rel=1e-3)
            assert "".join(kept["text"]).startswith(world.policy.answer(batch.rollouts.tokens[at][own].tolist()))
            assert kept["token_class"][0] == "decides"
            assert kept["prompt"] == batch.problems[int(batch.rollouts.group[at])].prompt
            assert kept["right"] == (kept["text"][0] in RIGHT) == (kept["score"] == 1)
    assert used == set(range(len(record["responses"]))), "every response that is kept is shown, and once"
    json.dumps(in_json(record), allow_nan=False)


def test_the_number_of_examples_is_asked_for(measured: Measured) -> None:
    credits = {BASELINE: measured.assigned[BASELINE].credit, ORACLE: measured.truth.advantage}
    assert [len(row["examples"]) for row in again(measured, credits, examples=1)["rows"]] == [1, 0]
    none = again(measured, credits, examples=0)
    assert none["responses"] == []
    assert none["rows"][0]["right"]["undecided"]["value"] > 0
    assert list(worst_examples({"anatomy": none})) == []


def test_a_response_that_could_not_be_graded_is_on_no_side_and_no_example(measured: Measured) -> None:
    score, advantage = measured.batch.score.clone(), measured.truth.advantage.clone()
    graded = again(measured, {BASELINE: measured.assigned[BASELINE].credit})
    worst = graded["responses"][0]["row"]
    score[worst] = torch.nan
    changed = measured._replace(batch=measured.batch._replace(score=score), truth=measured.truth._replace(advantage=advantage))
    found = again(changed, {BASELINE: measured.assigned[BASELINE].credit})
    assert worst not in [one["row"] for one in found["responses"]]
    assert found["rows"][0]["examples"][0]["of"] == graded["rows"][0]["examples"][0]["of"] - 1


def test_the_terminal_draws_the_worst_response_twice(measured: Measured) -> None:
    record = {"anatomy": in_json(measured.record["anatomy"])}
    lines = list(worst_examples(record))
    response = record["anatomy"]["responses"][row_of(record["anatomy"], BASELINE)["examples"][0]["response"]]
    title, truth, credit = lines[:3]
    assert title.plain.startswith(f"{BASELINE}: disagrees most, 1 - cos = ")
    assert title.plain.endswith("a right response" if response["right"] else "a wrong response")
    for line, what in ((truth, "A*"), (credit, "credit")):
        assert line.plain.split()[0] == what
        assert "".join(response["text"]) in line.plain
    # Blue where positive, orange where negative; what decided nothing has no colour.
    place = truth.plain.index("".join(response["text"]))
    [first] = [span for span in truth.spans if span.start == place]
    assert ("on rgb(" in str(first.style)) == (response["truth"][0] != 0)
    assert len(lines) == 3 * 3 + 1


def test_labels_are_those_of_the_row() -> None:
    """Texts of all rows lie one after the other: a row begins where those before it end."""
    measured = measure_credit(subject(), ORDER, find_methods("grpo"), nobody, Clock())
    count = int(measured.batch.rollouts.mask.sum())
    labels = TokenLabels([str(at) for at in range(count)], ["other"] * count, [None] * count)
    credits = {BASELINE: measured.assigned[BASELINE].credit}
    times = redrawn(ORDER.prompts, draws=2, seed=0)
    record = anatomy_record(measured.batch, measured.truth, labels, credits, {BASELINE: BASELINE}, times, ORDER)
    lengths = measured.batch.rollouts.mask.sum(1).tolist()
    for kept in record["responses"]:
        start = sum(lengths[: kept["row"]])
        assert kept["text"] == [str(at) for at in range(start, start + lengths[kept["row"]])]
