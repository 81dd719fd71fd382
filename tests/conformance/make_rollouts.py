"""Writes rollouts.json: `python tests/conformance/make_rollouts.py`. Once made, the file is what every engine is given, on any machine.

In every batch: prompts and responses of uneven length, responses cut at the limit, a group all right, a group all wrong, a group
that nobody could grade, and a group with one ungraded response.
"""

import json
from random import Random
from typing import Any

from stored import BASE, FILE, GROUP_SIZE, LIMIT

from tokencredit.policy.policy import Policy, choose_device, load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample
from tokencredit.tasks.steps import Steps
from tokencredit.types import Rollouts

SEED, BATCHES = 500, 2
OPERATIONS = (2, 3, 4, 5, 3, 2, 4, 2)
"""In the prompt of each group; they decide its length. The second half is shorter, so that two ranks pad to different widths."""
SECOND_HALF_LIMIT = LIMIT - 2


def _scores(group: int, rng: Random) -> list[float | None]:
    """Groups 0 and 1 are dead, 2 is ungraded, 3 has one ungraded response; the others are right and wrong in some share."""
    if group < 3:
        return [(1.0, 0.0, None)[group]] * GROUP_SIZE
    right = rng.randrange(1, GROUP_SIZE)
    scores: list[float | None] = [1.0] * right + [0.0] * (GROUP_SIZE - right)
    rng.shuffle(scores)
    return [1.0, None, 0.0, *scores[3:]] if group == 3 else scores


def _other_sampler(logp: list[float], rng: Random) -> list[float | None]:
    """Up to a factor of 4 away; one token in 50 is not scored."""
    return [None if rng.random() < 0.02 else round(min(0.0, value + rng.uniform(-1.4, 1.4)), 4) for value in logp]


def _answered(policy: Policy, operations: int, rng: Random) -> tuple[str, Rollouts]:
    """A prompt of a length of its own with sampled responses; other ones where the base, which knows one length, writes padding."""
    while True:
        prompt = Steps(operations=operations).make_problem(rng).prompt
        drawn = sample(
            policy, [policy.encode(prompt)], SamplingParams(group_size=GROUP_SIZE, max_new_tokens=LIMIT, seed=rng.randrange(2**31))
        ).rollouts
        if all("<" not in policy.decode(row[inside].tolist()) for row, inside in zip(drawn.tokens, drawn.mask, strict=True)):
            return prompt, drawn


def make_batch(policy: Policy, seed: int) -> list[dict[str, Any]]:
    """A row per response: sampled from the base, two in five then cut short."""
    rng, rows = Random(seed), []
    for group, operations in enumerate(OPERATIONS):
        prompt, drawn = _answered(policy, operations, rng)
        limit = LIMIT if group < len(OPERATIONS) / 2 else SECOND_HALF_LIMIT
        for row, score in enumerate(_scores(group, rng)):
            full = drawn.tokens[row][drawn.mask[row]].tolist()
            response = full[: limit if rng.random() < 0.6 else rng.randrange(3, limit)]
            other = _other_sampler(drawn.behavior_logp[row, : len(response)].tolist(), rng)
            ended = response[-1] in policy.end_tokens
            rows.append({"prompt": prompt, "response": policy.decode(response), "ended": ended, "score": score, "sampler_logp": other})
    return rows


if __name__ == "__main__":
    base = load_policy(BASE, device=choose_device("cpu"), dtype="float32")
    batches = [[json.dumps(row) for row in make_batch(base, SEED + number)] for number in range(BATCHES)]
    FILE.write_text("[\n" + ",\n".join("[\n" + ",\n".join(batch) + "\n]" for batch in batches) + "\n]\n", encoding="utf-8")
