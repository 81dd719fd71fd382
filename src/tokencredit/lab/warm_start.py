"""A brief supervised warm start on demonstrations: how the shipped base policies are made."""

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

IGNORED = -100

Examples = Callable[[int], Sequence[tuple[str, ...]]]
"""Demonstrations of one iteration: prompt, response, and for a conversation what the environment says, response ..."""


def pad_examples(examples: Sequence[tuple[str, ...]], tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor]:
    """Token ids and labels, right-padded; only response tokens and the end token of each are labelled."""
    end = cast(int, tokenizer.eos_token_id)
    encoded = [
        [tokenizer.encode(text, add_special_tokens=False) + ([end] if place % 2 else []) for place, text in enumerate(example)]
        for example in examples
    ]
    longest = max(sum(map(len, parts)) for parts in encoded)
    ids = torch.full((len(encoded), longest), cast(int, tokenizer.pad_token_id))
    labels = torch.full_like(ids, IGNORED)
    for row, parts in enumerate(encoded):
        start = 0
        for place, part in enumerate(parts):
            ids[row, start : start + len(part)] = torch.tensor(part)
            if place % 2:
                labels[row, start : start + len(part)] = torch.tensor(part)
            start += len(part)
    return ids, labels


def warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Examples,
    *,
    iterations: int,
    batch: int,
    learning_rate: float,
    report: Callable[[int, float], None] = lambda iteration, loss: None,
) -> None:
    """Cross-entropy on responses; AdamW with a short warm-up and cosine decay to a tenth.

    `examples(iteration)` supplies the batch, so the order of data is the caller's pure function of a seed.
    Right padding needs no attention mask: causal attention never looks ahead and padding is not labelled.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, betas=(0.9, 0.95))
    warm_up = max(1, iterations // 20)

    def scale(iteration: int) -> float:
        progress = min(1.0, iteration / iterations)
        return min(1.0, (iteration + 1) / warm_up) * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    model.train()
    for iteration in range(iterations):
        pairs = examples(iteration)
        if len(pairs) != batch:
            raise ValueError(f"examples({iteration}) gave {len(pairs)} demonstrations, batch is {batch}")
        ids, labels = pad_examples(pairs, tokenizer)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        report(iteration, float(loss.detach()))
    model.eval()
