"""A world in which every value is known: a tiny random policy, three tokens at most, and a task that only the first of them decides."""

from dataclasses import dataclass

import torch

from tiny import tiny_policy
from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.forward.padded import response_logits
from tokencredit.lab.credit.measure import Subject
from tokencredit.policy.policy import Policy
from tokencredit.tasks import Problem

LONGEST = 3
RIGHT = "13579+-"
"""A response that begins with one of these is right."""


@dataclass(frozen=True)
class FirstTokenDecides:
    @property
    def format_classes(self) -> frozenset[str]:
        return frozenset({"filler"})

    def problems(self, count: int, *, split: str, seed: int) -> list[Problem]:
        return [Problem(prompt=f"{(seed + number) % 10}+{number % 7}=", answer="") for number in range(count)]

    def grade(self, problem: Problem, response: str) -> float:
        return float(response[:1] in tuple(RIGHT))

    def token_class(self, problem: Problem, response: str) -> list[str]:
        return ["decides", *["filler"] * (len(response) - 1)][: len(response)]


def subject(group_size: int = 8) -> Subject:
    config: TrainConfig = resolve(
        [{"recipe": "grpo", "device": "cpu", "dtype": "float64", "sampling": {"max_new_tokens": LONGEST, "group_size": group_size}}]
    )
    return Subject(tiny_policy(), FirstTokenDecides(), config)


@dataclass(frozen=True)
class LastTokenDecides(FirstTokenDecides):
    """Nothing is decided before the end, so that values go on changing: right where the characters' codes sum to an even number."""

    def grade(self, problem: Problem, response: str) -> float:
        return float(sum(map(ord, response)) % 2 == 0)


def every_value(policy: Policy, task: FirstTokenDecides, problem: Problem) -> dict[tuple[int, ...], float]:
    """Prefix -> its value, by enumerating every response of at most LONGEST tokens."""
    prompt = tuple(policy.ask(problem.prompt))
    size = policy.model.config.vocab_size
    ends = set(policy.end_tokens)
    open_prefixes: list[list[tuple[int, ...]]] = [[()]]
    for _ in range(LONGEST - 1):
        open_prefixes.append([(*one, token) for one in open_prefixes[-1] for token in range(size) if token not in ends])
    values: dict[tuple[int, ...], float] = {}

    def value(prefix: tuple[int, ...]) -> float:
        if prefix not in values:
            values[prefix] = task.grade(problem, policy.answer(list(prefix)))
        return values[prefix]

    for level in reversed(open_prefixes):
        with torch.no_grad():
            logits = response_logits(policy.model, [prompt] * len(level), torch.tensor([[*one, 0] for one in level])).logits[:, -1]
        for prefix, chances in zip(level, logits.softmax(-1).tolist(), strict=True):
            values[prefix] = sum(chance * value((*prefix, token)) for token, chance in enumerate(chances))
    return values
