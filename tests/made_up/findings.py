"""Findings with the keys a diagnosis writes, and one no page knows."""

import random
from typing import Any

CLASSES = ("preamble", "copy", "operator", "operand", "result", "separator", "answer")
CONFIDENCE = ("p < 0.5", "p 0.5–0.9", "p 0.9–0.99", "p ≥ 0.99")


def made_up_findings(numbers: random.Random, step: int) -> dict[str, Any]:
    share = numbers.random
    matrix = [
        {"horizon": horizon, "band": band, "side": side, "tokens": 900, "boosted": risen, "suppressed": 1 - still - risen,
         "unchanged": still, "mean_change": 0.01 * risen}
        for horizon in ("first", "step")
        for band, still in ((0.0, 0.02), (1e-4, 0.42))
        for side, risen in (("positive", 0.3 + 0.2 * share()), ("negative", 0.2 + 0.2 * share()))
    ]  # fmt: skip
    by_side = [
        {"horizon": "step", "token_class": name, "side": "positive", "tokens": 40, "boosted": share(), "suppressed": share()}
        for name in CLASSES
    ]
    flips = {
        "name": "flips",
        "note": "After the whole training step: 38.2 % of 900 tokens of positive advantage fell, 41.0 % of 900 of negative advantage rose.",
        "numbers": {"dead_band": 1e-4, "step/positive/flip": matrix[4]["suppressed"], "step/negative/flip": matrix[5]["boosted"],
                    "step/similarity": abs(matrix[4]["boosted"] - matrix[5]["boosted"]),
                    "step/band/positive/flip": matrix[6]["suppressed"], "step/band/negative/flip": matrix[7]["boosted"],
                    "step/band/similarity": abs(matrix[6]["boosted"] - matrix[7]["boosted"])},
        "tables": {"matrix": matrix, "by_class": by_side},
    }  # fmt: skip
    by_class = [
        {"token_class": name, "tokens": 100, "mass": 0.5 + share() / 2, "mean": share(), "mini_mass": share() / 2, "lost_mass": share()}
        for name in CLASSES
    ]
    pushed = [
        {"direction": direction, "text": text, "tokens": 12, "mass": 1.0, "mean_effect": sign * (place + 1) / 50}
        for direction, sign in (("amplified", 1), ("damped", -1))
        for place, text in enumerate(("7", ";", "<eos>", "b"))
    ]
    cancellation = {
        "name": "cancellation",
        "note": "Over the whole batch 71.3 % of what the two sides do to 1800 tokens cancels.",
        "numbers": {"mass": 0.6 + share() / 5, "mini/mass": 0.4 + share() / 5, "lost/mass": -0.0625, "mean": 0.5},
        "tables": {"by_class": by_class, "amplified_and_damped": pushed},
    }
    pairs = [
        {"identity": kind, "confidence": low, "other_confidence": high, "pairs": 1000, "mean_kernel": 0.02, "mean_abs_kernel": 0.03,
         "share": (0.2 if kind == "same" else 0.04) / (1 + place + other)}
        for kind in ("different", "same")
        for place, low in enumerate(CONFIDENCE)
        for other, high in enumerate(CONFIDENCE)
    ]  # fmt: skip
    coupling = {
        "name": "coupling",
        "note": "Through the LM head, 31.0 % of the summed absolute push is a token's own.",
        "numbers": {"share/own": 0.31, "share/same": 0.52, "share/other": 0.17, "outvoted": share() / 3},
        "tables": {
            "pairs": pairs,
            "by_class": [{"token_class": name, "own": share(), "same": share(), "other": share()} for name in CLASSES],
        },
    }
    simple = [
        {"name": name, "note": note, "numbers": {key: share() for key in keys}, "tables": {}}
        for name, note, keys in (
            (
                "effect",
                "Predicted by jvp. For the whole training step the correlation is 0.963.",
                ("first/correlation", "step/correlation", "step/sign"),
            ),
            ("tax", "Share of all KL on tokens whose credit is 0: 12.0 % by 'format'.", ("any/kl", "format/kl", "certain/kl")),
            (
                "drift",
                "In 40 pairs of equally scored responses the log-odds moved by 0.04 nats on average.",
                ("equal/absolute", "unequal/mean", "ratio"),
            ),
        )
    ]
    unknown = {
        "name": "weather",
        "note": "A finding no page knows.",
        "numbers": {"rain": None, "wind/speed": 3.5},
        "tables": {"by_day": [{"day": day, "rain": share()} for day in range(30)], "nothing": []},
    }
    return {
        "step": step,
        "rollouts_used": 0,
        "method": "jvp",
        "looked_at": {"groups": 2, "of": 8},
        "findings": [unknown, flips, *simple, cancellation, coupling],
    }
