"""Does the model suit the task and the budget? Asked before anything is written."""

from collections.abc import Sequence

from tokencredit.config import TrainConfig
from tokencredit.engine.local.policy import Policy
from tokencredit.errors import ConfigError
from tokencredit.tasks import Problem, Task, marks_steps, revision_prompt


def check_fit(policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig) -> None:
    """Refuse, before anything is written, a model that cannot read the task or a budget that cannot hold its prompts."""
    prompts = [policy.encode(problem.prompt) for problem in problems]
    unknown = policy.tokenizer.unk_token_id
    if unknown is not None and any(unknown in prompt for prompt in prompts):
        raise ConfigError(f"model {config.model!r} has no tokens for prompts of task {config.task.type!r}, such as {problems[0].prompt!r}")
    if config.shape.type == "ibpo":
        asked = revision_prompt(task, problems[0], problems[0].answer, problems[0].answer)
        if unknown is not None and unknown in policy.encode(asked):
            raise ConfigError(f"model {config.model!r} has no tokens for revision prompts of task {config.task.type!r}, such as {asked!r}")
    if config.credit.type == "process" and config.credit.boundary == "steps" and not marks_steps(task):
        raise ConfigError(f"task {config.task.type!r} does not mark where steps begin; use credit.boundary 'tokens'")
    longest = max(len(prompt) for prompt in prompts) + config.sampling.max_new_tokens
    if longest > config.optimizer.max_tokens:
        raise ConfigError(
            f"optimizer.max_tokens is {config.optimizer.max_tokens} but a prompt with its response may take {longest} tokens; "
            "give at least that"
        )
