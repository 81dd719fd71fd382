"""Responses to problems: one each, or in turns where the task converses. Whoever samples for a task asks here."""

from collections.abc import Sequence

from tokencredit.policy.policy import Policy
from tokencredit.rollout.multi_turn import sample_turns
from tokencredit.rollout.sample import Sampled, sample
from tokencredit.tasks import Conversing, Problem, Task


def respond(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    *,
    group_size: int,
    max_new_tokens: int,
    seed: int,
    temperature: float = 1.0,
    greedy: bool = False,
    keep_hidden: bool = False,
    dtype: str = "float32",
) -> Sampled:
    """`group_size` responses to each problem, `group` numbering the problems."""
    drawing = {
        "group_size": group_size,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "temperature": temperature,
        "greedy": greedy,
        "keep_hidden": keep_hidden,
        "dtype": dtype,
    }
    if isinstance(task, Conversing):
        return sample_turns(policy, task, problems, **drawing)
    return sample(policy, [policy.ask(problem.prompt) for problem in problems], **drawing)
