"""What runs in verl's worker and what the driver asks of it: hidden states, coefficients, corrections, and refusals in between."""

from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from verl.workers.utils.padding import no_padding_2_padding, response_from_nested

from conformance.cases import Case
from conformance.compare import assert_same
from conformance.reference import run_case
from conformance.stored import LIMIT, StoredBatch, base_policy, stored_batches
from in_verl import stored_run
from in_verl.row_queue import Queue
from in_verl.stored_run import (
    StoredTrainer,
    Workers,
    as_rank_0,
    case_overrides,
    credit_stored,
    hydra_config,
    in_place_of_the_queue,
    put_rollouts,
    run_stored,
    shape_of,
)
from tokencredit.config.resolve import read_recipe
from tokencredit.credit.delta import delta_coefficients
from tokencredit.errors import ConfigError, GuardError
from tokencredit.integrations.verl.worker import CreditLoss, hidden_of_responses, over_sequences, requesting

PROMPTS, RESPONSES, NAMES = (2, 3, 1), (3, 1, 2), (7, 3, 5)
PREDICTING = {7: [1, 2, 3], 3: [2], 5: [0, 1]}
"""By row name, which positions of its own sequence predict the response."""
NOT_OURS = "the plug-in is not loaded in them, or another engine is"
FLAT = {7: [1, 2, 3], 3: [5 + 2], 5: [9 + 0, 9 + 1]}


def ragged(lengths: tuple[int, ...]) -> Tensor:
    return torch.nested.as_nested_tensor([torch.ones(length) for length in lengths], layout=torch.jagged)


def hand_made() -> TensorDict:
    whole = tuple(prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True))
    fields = {"input_ids": ragged(whole), "prompts": ragged(PROMPTS), "responses": ragged(RESPONSES)}
    return TensorDict({**fields, "tokencredit_row": torch.tensor(NAMES)}, batch_size=3)


def states(rows: int, positions: int) -> Tensor:
    """Two numbers per position that say where it is."""
    row, position = torch.meshgrid(torch.arange(rows), torch.arange(positions), indexing="ij")
    return torch.stack([row, position], -1).float()


@pytest.mark.parametrize("tail", [0, 4], ids=["bare", "with a tail that fills a bucket"])
def test_hidden_states_of_a_flat_batch(tail: int) -> None:
    given = states(1, 12 + tail)
    kept = hidden_of_responses(given, hand_made())
    given += 100
    assert {row: own[:, 1].tolist() for row, own in kept.items()} == FLAT, "and they are copies"


def test_hidden_states_of_a_padded_batch() -> None:
    kept = hidden_of_responses(states(3, 5), hand_made())
    assert {row: own[:, 1].tolist() for row, own in kept.items()} == PREDICTING
    assert {row: set(own[:, 0].tolist()) for row, own in kept.items()} == {7: {0}, 3: {1}, 5: {2}}


@pytest.mark.parametrize("place", range(3))
def test_hidden_states_of_one_row(place: int) -> None:
    one = hand_made()
    alone = TensorDict({name: one[name][place : place + 1] for name in ("tokencredit_row",)}, batch_size=1)
    for name in ("input_ids", "responses"):
        alone[name] = torch.nested.as_nested_tensor([one[name][place]], layout=torch.jagged)
    kept = hidden_of_responses(states(1, PROMPTS[place] + RESPONSES[place]), alone)
    assert {row: own[:, 1].tolist() for row, own in kept.items()} == {NAMES[place]: PREDICTING[NAMES[place]]}


def test_values_lie_where_verl_looks_for_those_of_responses() -> None:
    data, value = hand_made(), torch.arange(1.0, 10.0).view(3, 3)
    spread = over_sequences(value, data)
    assert spread.values().tolist() == [0, 1, 2, 3, 0, 0, 0, 4, 0, 7, 8, 0]
    read = response_from_nested(spread, data["responses"])
    assert [row.tolist() for row in read.unbind()] == [[1, 2, 3], [4], [7, 8]]
    assert no_padding_2_padding(spread, data).tolist() == [[1, 2, 3], [4, 0, 0], [7, 8, 0]]


def test_the_workers_are_asked_once() -> None:
    told: dict[str, Any] = {"temperature": 1.0}
    with suppress(KeyError), requesting(told, asked="something"):
        assert told == {"temperature": 1.0, "asked": "something"}
        raise KeyError
    assert told == {"temperature": 1.0}


def config_of(case: Case, folder: Path) -> DictConfig:
    return hydra_config(folder, shape_of(case, 1), *case_overrides(case))


def score_alone(prompt: tuple[int, ...], response: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Log-probs of a response and what its head was given, by the model's own answer to one unpadded sequence."""
    ids = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        answer = base_policy().model(ids, output_hidden_states=True)
    predicting = slice(len(prompt) - 1, ids.shape[1] - 1)
    logp = answer.logits[0, predicting].log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0]
    return logp, answer.hidden_states[-1][0, predicting]


def padded(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


@pytest.mark.parametrize("proxy", ["row", "head"])
@pytest.mark.parametrize("by_tokens", [False, True])
def test_coefficients_are_those_of_the_models_own_hidden_states(proxy: str, by_tokens: bool, workers: Workers, tmp_path: Path) -> None:
    case = Case({"recipe": "delta", "credit": {"proxy": proxy}})
    batch = stored_batches()[0]
    workers.start(case.learning_rate)
    workers.cut(rows=4, tokens=90 if by_tokens else None)
    trainer = StoredTrainer(config_of(case, tmp_path), workers)
    with in_place_of_the_queue(workers.queue):
        credit_stored(trainer, workers.queue, batch, {})
    (made,) = trainer.made

    scored = [score_alone(*row) for row in zip(batch.prompt_ids, batch.response_ids, strict=True)]
    rollouts = batch.rollouts()
    expected = delta_coefficients(
        padded([logp for logp, _ in scored]),
        padded([hidden for _, hidden in scored]),
        made.advantage,
        rollouts.loss_mask,
        rollouts.group,
        proxy=proxy,
        tokens=rollouts.tokens,
        head=base_policy().model.get_output_embeddings().weight.detach(),
    )
    assert expected[rollouts.mask].std() > 1e-3
    torch.testing.assert_close(made.coefficient, expected, atol=1e-5, rtol=0)
    assert workers.worker.engine._kept == {}, "hidden states are let go"


class UnsyncedFSDP(FullyShardedDataParallel):
    """Without sending rank 0's weights to the others first, which takes an accelerator."""

    def __init__(self, module: Any, **settings: Any) -> None:
        super().__init__(module, **{**settings, "sync_module_states": False})


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`", "ignore::FutureWarning")
def test_verls_default_strategy_gives_the_same_numbers(one_rank: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP1 flattens parameters, so gradients are compared by norm; every loss after the first stands on the weights before it."""
    monkeypatch.setattr("verl.workers.engine.fsdp.transformer_impl.FSDP", UnsyncedFSDP)
    case = Case({"recipe": "delta", "credit": {"proxy": "head"}})
    words = [*case_overrides(case), "actor_rollout_ref.actor.strategy=fsdp"]
    workers = as_rank_0(hydra_config(tmp_path, shape_of(case, 1), *words))
    assert isinstance(workers.worker.engine.module, UnsyncedFSDP)
    workers.cut(rows=2)
    found = run_stored(case, workers, hydra_config(tmp_path / "again", shape_of(case, 1), *words), workers.queue)
    expected = run_case(case).outcome
    for ours, theirs in zip(found.batches, expected.batches, strict=True):
        torch.testing.assert_close(ours.coefficient, theirs.coefficient, atol=1e-5, rtol=0)
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    torch.testing.assert_close(found.gradient.norm(dim=1), expected.gradient.norm(dim=1), atol=1e-5, rtol=1e-5)


def test_a_worker_without_our_engine_is_noticed(stock_workers: Workers, tmp_path: Path) -> None:
    trainer = StoredTrainer(config_of(Case({"recipe": "delta"}), tmp_path), stock_workers)
    with (
        in_place_of_the_queue(stock_workers.queue),
        pytest.raises(GuardError, match="the plug-in is not loaded in them, or another engine is"),
    ):
        credit_stored(trainer, stock_workers.queue, stored_batches()[0], {})


@pytest.mark.parametrize("recipe", ["dfpo", "clip-cov", "kl-cov"])
def test_a_loss_without_the_statistic_of_its_step_is_noticed(recipe: str, stock_workers: Workers, tmp_path: Path) -> None:
    case = Case({"recipe": recipe})
    with pytest.raises(GuardError, match=NOT_OURS):
        run_stored(case, stock_workers, config_of(case, tmp_path), stock_workers.queue)


def test_several_trajectories_of_one_response_are_refused(workers: Workers, tmp_path: Path) -> None:
    def two_turns(queue: Queue, stored: StoredBatch) -> list[str]:
        keys = put_rollouts(queue, stored)
        last = keys.pop()
        other = f"{keys[0].removesuffix('_0')}_1"
        queue.rows[other], queue.tags[other] = queue.rows.pop(last), queue.tags.pop(last)
        return [*keys, other]

    trainer = StoredTrainer(config_of(Case({"recipe": "grpo"}), tmp_path), workers)
    with (
        in_place_of_the_queue(workers.queue),
        patch.object(stored_run, "put_rollouts", two_turns),
        pytest.raises(ConfigError, match="several trajectories for one response"),
    ):
        credit_stored(trainer, workers.queue, stored_batches()[0], {})


CORRECTIONS = {
    "tis": {"kind": "tis", "cap": 1.3},
    "mis": {"kind": "mis", "cap": 1.3, "floor": 0.6},
    "tis of responses": {"kind": "tis", "level": "sequence", "cap": 1.5},
}


@pytest.mark.parametrize("recipe", ["grpo", "delta"])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_sampler_that_differs_is_corrected_as_the_local_engine_does(
    recipe: str, correction: str, workers: Workers, tmp_path: Path
) -> None:
    case = Case({"recipe": recipe, "correction": CORRECTIONS[correction]}, other_sampler=True)
    workers.cut(rows=2)
    found = run_stored(case, workers, config_of(case, tmp_path), workers.queue)
    expected = run_case(case).outcome
    assert_same(f"{recipe}, {correction}", found, expected)
    plain = run_case(case._replace(recipe={"recipe": recipe})).outcome
    assert (plain.gradient - expected.gradient).abs().max() > 1e-3, "the weights matter"


def test_broken_log_probs_stop_the_run_before_anything_is_trained(workers: Workers, tmp_path: Path) -> None:
    for number, recipe in enumerate(("grpo", "delta")):
        trainer = StoredTrainer(config_of(Case({"recipe": recipe}), tmp_path / str(number)), workers)
        stock = type(trainer).__mro__[2]._compute_old_log_prob

        def broken(self: Any, batch: Any, metrics: Any, stock: Any = stock) -> Any:
            done = stock(self, batch, metrics)
            workers.queue.rows[batch.keys[5]]["old_log_probs"][1] = torch.nan
            return done

        with (
            in_place_of_the_queue(workers.queue),
            patch.object(type(trainer).__mro__[2], "_compute_old_log_prob", broken),
            pytest.raises(GuardError, match="log-probs of the sampled tokens are not finite"),
        ):
            credit_stored(trainer, workers.queue, stored_batches()[0], {})


def test_numbers_about_credit_and_plan_are_told(workers: Workers, tmp_path: Path) -> None:
    case = Case({"recipe": "delta", "batching": {"type": "query-preserved"}}, learning_rate=0.1)
    workers.start(case.learning_rate)
    trainer = StoredTrainer(config_of(case, tmp_path), workers)
    metrics: dict[str, Any] = {}
    with in_place_of_the_queue(workers.queue):
        trainer._update_actor(credit_stored(trainer, workers.queue, stored_batches()[0], metrics), metrics)
    told = {name.removeprefix("tokencredit/"): value for name, value in metrics.items() if name.startswith("tokencredit/")}
    assert (told["ungraded"], told["optimizer_steps"], told["prompts_per_optimizer_step"]) == (5, 4, 2)
    assert told["steps_splitting_groups"] == 0
    assert told["coefficient_mean"] == pytest.approx(1, abs=1e-4)
    assert told["coefficient_std"] > 0.01
    assert 0 < metrics["actor/silenced_share"] < 1
    assert 0.5 < metrics["actor/ratio_mean"] < 2
    assert metrics["actor/pg_loss"] == pytest.approx(sum(workers.loss) / len(workers.loss), abs=1e-5)


def test_the_loss_travels_with_its_recipe() -> None:
    import pickle

    sent = CreditLoss(read_recipe("dfpo"), max_new_tokens=LIMIT)
    assert sent.built.aggregation == "token-mean"
    received = pickle.loads(pickle.dumps(CreditLoss(read_recipe("dfpo"), max_new_tokens=LIMIT)))
    assert (received.recipe, received.max_new_tokens) == (sent.recipe, LIMIT)
    assert received.built.constant_length == LIMIT
