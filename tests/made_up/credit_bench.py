"""A result of the credit benchmark made of random numbers by its own statistics; no model is asked."""

import random
from typing import Any

import torch

from tokencredit.lab.credit.agreement import agreement, coefficient_table, concentration
from tokencredit.lab.credit.compare_gradients import gradient_record
from tokencredit.lab.credit.quality import Halves, Products, redrawn
from tokencredit.lab.credit.recipes import CreditOrder
from tokencredit.lab.credit.run import in_json

METHODS = ("grpo", "grpo x random 0.8-1.2", "dapo", "a-recipe-with-a-name-that-is-rather-long-for-a-table")
CLASSES = ("result", "operand", "separator", "preamble")


def _gradients(dice: random.Random, *, oracle: bool) -> dict[str, Any]:
    names = [*METHODS, *(["oracle A*"] if oracle else [])]
    found = {}
    for name in names:
        batches = [Products(dice.gauss(0.4, 0.05), 1.0, dice.gauss(-0.2, 0.05)) for _ in range(6)]
        found[name] = (batches, Products(0.4, 0.3, -0.2))
    halves = Halves(1.0, 1.0, 0.9, -0.4, -0.4, 1.0)
    record = gradient_record(found, halves, baseline="grpo", twins={METHODS[3]: "dapo"}, rollouts=128, shown=names)
    for row in record["rows"]:
        row["same_direction_as"] = "grpo" if row["method"] == "dapo" else None
    return record | {"different_directions": len(names) - 1}


def _anatomy(dice: random.Random) -> dict[str, Any]:
    """A right response with a token against its truth and a long wrong one with a missed token; one recipe shows them in turned order."""
    prompt, kinds = "6+4-3-9-2=", ("undecided", "against", "agreeing", "missed")
    shares = {kind: {"value": dice.random(), "low": 0.1, "high": 0.9} for kind in kinds}
    one = {
        "row": 3, "prompt": prompt, "score": 1.0, "right": True, "text": ["a", "0", "<b>", "\n"],
        "token_class": ["preamble", "result", "result", "end"], "truth": [0.01, -0.4, 0.3, None],
        "standard_error": [0.02, 0.03, 0.03, None], "probability": [0.5, 0.25, 0.8, 1], "baseline_credit": [0.7, 0.7, 0.7, 0.7],
    }  # fmt: skip
    two = one | {"row": 5, "score": 0.0, "right": False, "text": [*"abcdefgh"] * 20, "token_class": ["copy"] * 160}
    two |= {name: [0.0] * 160 for name in ("truth", "standard_error", "baseline_credit")} | {"probability": [1] * 160}
    two["truth"] = [-0.5, *[0.0] * 159]
    shown = {"response": 0, "disagreement": 1.25, "rank": 1, "of": 9, "credit": [0.7, 0.9, 0.2, 0], "kind": [*kinds[:3], None]}
    long = {"response": 1, "disagreement": 0.5, "rank": 5, "of": 9, "credit": [0, *[-0.5] * 159], "kind": ["missed", *["undecided"] * 159]}
    rows = []
    for name in METHODS:
        examples = {METHODS[0]: [shown, long], METHODS[3]: [long | {"rank": 1}, shown | {"rank": 5}]}.get(name, [])
        same = "grpo" if name == "dapo" else None
        rows.append({"method": name, "same_credit_as": same, "right": shares, "wrong": shares, "examples": examples})
    return {"standard_errors": 2.0, "rows": rows, "responses": [one, two]}


def made_up_result(*models: str) -> dict[str, Any]:
    dice, tokens = random.Random(0), 200
    truth, variance = torch.randn(tokens, dtype=torch.float64) * 0.1, torch.full((tokens,), 0.001, dtype=torch.float64)
    classes = [CLASSES[number % 4] for number in range(tokens)]
    group, times, advantage = (
        torch.arange(tokens) // 25,
        redrawn(8, draws=20, seed=0),
        torch.where(torch.arange(tokens) % 2 == 0, 1.0, -1.0),
    )
    rows = []
    for name in METHODS:
        credit = advantage * (1 + 0.3 * torch.rand(tokens) * (name != "grpo"))
        told = agreement(credit, advantage, truth, truth.abs() > 0.1, None, group, times)
        rows.append(
            {
                "method": name,
                "same_credit_as": "grpo" if name == "dapo" else None,
                **{field: getattr(told, field)._asdict() for field in told._fields},
                "by_class": coefficient_table(credit, advantage, classes),
                "extra_rollouts_per_rollout": 0.0,
            }
        )
    records = [
        {
            "model": model,
            "task": {"type": "steps"},
            "parameters": 132928,
            "policy": {"rollouts": 4096, "accuracy": 0.3, "mixed_groups": 0.9, "entropy": 0.28, "length": 30.0},
            "truth": {"rollouts": 8, "prefixes": 100, "continuations": 1000, **concentration(truth, variance, classes)},
            "agreement": {"decisive_above": 0.1, "decisive_tokens": 60, "rows": rows},
            "anatomy": _anatomy(dice),
            "gradient": {"batches": _gradients(dice, oracle=False), "groups": _gradients(dice, oracle=True)},
            "left_out": [{"recipe": "vineppo", "part": "batches", "why": "is dear"}],
            "seconds": {"truth": 30.0, "all": 100.0},
        }
        for model in models
    ]
    return in_json(
        {
            "date": "2026-01-01T00:00:00+00:00",
            "environment": {"commit": "0" * 40, "packages": {"torch": "2"}, "platform": "made up"},
            "threads": 1,
            "seed": 0,
            "order": CreditOrder()._asdict() | {"group_size": 8},
            "rows": {"baseline": "grpo", "control": METHODS[1], "oracle": "oracle A*"},
            "checkpoints": records,
        }
    )
