"""A result of the credit benchmark made of random numbers by its own statistics; no model is asked."""

import random
from typing import Any

import torch

from tokencredit.bench.credit.agreement import agreement, coefficient_table
from tokencredit.bench.credit.bootstrap import redrawn
from tokencredit.bench.credit.concentration import concentration
from tokencredit.bench.credit.order import CreditOrder
from tokencredit.bench.credit.quality import Halves, Products
from tokencredit.bench.credit.recorded import gradient_record
from tokencredit.bench.credit.run import in_json

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
