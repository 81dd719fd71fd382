"""Does the model suit the task and the budget? Asked before anything is written."""

from collections.abc import Sequence

from tokencredit.config.messages import shortened
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.policy.policy import Policy
from tokencredit.tasks import Conversing, DemonstratingTurns, Problem, Task, marks_steps, revision_prompt


def check_fit(policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig) -> None:
    """Refuse, before anything is written, a model that cannot read the task or a budget that cannot hold its prompts."""
    check_turns(task, config)
    prompts = [policy.ask(problem.prompt) for problem in problems]
    unknown = policy.tokenizer.unk_token_id
    if unknown is not None and any(unknown in prompt for prompt in prompts):
        raise ConfigError(
            f"model {config.model!r} has no tokens for prompts of task {config.task.type!r}, such as {shortened(problems[0].prompt)}; "
            "name one that has with --model"
        )
    if config.shape.type == "ibpo":
        asked = revision_prompt(task, problems[0], problems[0].answer, problems[0].answer)
        if unknown is not None and unknown in policy.ask(asked):
            raise ConfigError(f"model {config.model!r} has no tokens for revision prompts of task {config.task.type!r}, such as {asked!r}")
    if config.credit.type == "process" and config.credit.boundary == "steps" and not marks_steps(task):
        raise ConfigError(f"task {config.task.type!r} does not mark where steps begin; use credit.boundary 'tokens'")
    longest = max(len(prompt) for prompt in prompts) + config.sampling.max_new_tokens
    window = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(window, int) and longest > window:
        raise ConfigError(
            f"model {config.model!r} reads {window} tokens at most but a prompt with its response may take {longest}; lower "
            "sampling.max_new_tokens or prompt.few_shot"
        )
    if longest > config.optimizer.max_tokens:
        raise ConfigError(
            f"optimizer.max_tokens is {config.optimizer.max_tokens} but a prompt with its response may take {longest} tokens; "
            "give at least that"
        )


def check_turns(task: Task, config: TrainConfig) -> None:
    """Refuse, for a task of several turns, what takes a response to be written in one piece."""
    if not isinstance(task, Conversing):
        if lacking := [name for name in ("turns", "grade_turns") if hasattr(task, "reply") and not hasattr(task, name)]:
            raise ConfigError(
                f"task {config.task.type!r} has a method reply but lacks {', '.join(lacking)}; docs/multi-turn.md has an example"
            )
        return
    if task.turns < 1:
        raise ConfigError(f"task {config.task.type!r} has {task.turns} turns; it must have at least 1")
    wanted = {
        "shape.type is 'ibpo'": config.shape.type == "ibpo" and "a revision is one piece; use another shape",
        "credit.type is 'process'": config.credit.type == "process" and "prefixes are continued in one piece; use another credit",
        f"diagnose.value_budget is {config.diagnose.value_budget}": config.diagnose.value_budget
        and "prefixes are continued in one piece; set it to 0",
        f"prompt.few_shot is {config.prompt.few_shot}": config.prompt.few_shot and "a shot is one piece; set it to 0",
        "source is 'demonstrations'": config.source == "demonstrations"
        and not isinstance(task, DemonstratingTurns)
        and "it must show them with a method demonstrate_turns(problem, *, seed)",
        f"revision_share is {config.revision_share}": config.revision_share and "a revision is one piece; set it to 0",
    }
    for what, why in wanted.items():
        if why:
            raise ConfigError(f"{what} but task {config.task.type!r} converses in turns: {why}")
