"""The warm start that makes the shipped bases: a pure function of its seed, and only responses are learned."""

from random import Random

import pytest
import torch

from tiny import tiny_policy
from tokencredit.lab.warm_start import IGNORED, pad_examples, warm_start
from tokencredit.tasks import Steps
from tokencredit.tasks.steps import SHARPEN, demonstrate


def examples(iteration: int) -> list[tuple[str, str]]:
    rng = Random(iteration)
    return [(problem.prompt, demonstrate(problem, SHARPEN, rng)) for problem in Steps().problems(8, split="train", seed=iteration)]


def started(iterations: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    policy = tiny_policy(torch.float32)
    losses: list[float] = []

    def report(iteration: int, loss: float) -> None:
        losses.append(loss)

    warm_start(policy.model, policy.tokenizer, examples, iterations=iterations, batch=8, learning_rate=1e-2, report=report)
    return policy.model.state_dict(), losses


def test_the_same_seed_gives_the_same_weights_and_the_loss_falls() -> None:
    one, losses = started(40)
    two, _ = started(40)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert sum(losses[-5:]) / 5 < 0.7 * sum(losses[:5]) / 5


def test_labels_cover_the_response_and_its_end_and_nothing_else() -> None:
    tokenizer = tiny_policy().tokenizer
    ids, labels = pad_examples([("1+2=", "#3"), ("1+2+3=", "#6")], tokenizer)
    assert ids.shape == (2, 9)
    assert labels[0].tolist() == [IGNORED] * 4 + [*tokenizer.encode("#3"), tokenizer.eos_token_id] + [IGNORED] * 2
    assert labels[1].tolist() == [IGNORED] * 6 + [*tokenizer.encode("#6"), tokenizer.eos_token_id]


def test_of_a_conversation_every_response_is_labelled_and_no_reply() -> None:
    tokenizer = tiny_policy().tokenizer
    end = tokenizer.eos_token_id
    ids, labels = pad_examples([("12?", "3", ">?", "45"), ("6?", "7")], tokenizer)
    assert ids[0].tolist() == [*tokenizer.encode("12?3"), end, *tokenizer.encode(">?45"), end]
    assert labels[0].tolist() == [IGNORED] * 3 + [*tokenizer.encode("3"), end] + [IGNORED] * 2 + [*tokenizer.encode("45"), end]
    assert labels[1].tolist() == [IGNORED] * 2 + [*tokenizer.encode("7"), end] + [IGNORED] * 6


def test_a_batch_of_another_size_is_refused() -> None:
    policy = tiny_policy(torch.float32)
    with pytest.raises(ValueError, match=r"examples\(0\) gave 8 demonstrations, batch is 9"):
        warm_start(policy.model, policy.tokenizer, examples, iterations=1, batch=9, learning_rate=1e-2)
