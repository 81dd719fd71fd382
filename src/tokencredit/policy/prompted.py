"""A policy that puts the problems of a task the way a configuration asks for."""

from dataclasses import replace

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.policy.policy import Policy
from tokencredit.policy.prompting import Prompting, Shot
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Demonstrating, Task
from tokencredit.tasks.split import alike


def prompted(policy: Policy, config: TrainConfig, task: Task) -> Policy:
    chosen, template = config.prompt, policy.tokenizer.chat_template
    if chosen.style == "chat" and template is None:
        raise ConfigError(f"prompt.style is 'chat' but the tokenizer of model {config.model!r} has no chat template; use 'plain'")
    prompting = Prompting(
        chat=chosen.style != "plain" and template is not None,
        system=chosen.system,
        few_shot=chosen.few_shot,
        separator=chosen.separator,
        tags=chosen.tags,
    )
    if chosen.few_shot:
        prompting = replace(prompting, shots=_shots(task, prompting, config))
    return replace(policy, prompting=prompting, stops=config.sampling.stop)


def _shots(task: Task, prompting: Prompting, config: TrainConfig) -> tuple[Shot, ...]:
    """Of the training problems: what is held out is never shown. Several spares, since a training file may be asked for all it has."""
    if not isinstance(task, Demonstrating):
        raise ConfigError(f"prompt.few_shot is {config.prompt.few_shot} but task {config.task.type!r} has no demonstrations; set it to 0")
    seed = derive_seed(config.seed, "shots")
    found: dict[str, Shot] = {}
    for problem in task.problems(2 * config.prompt.few_shot + 1, split="train", seed=seed):
        found.setdefault(alike(problem.prompt), Shot(problem.prompt, prompting.written(task.demonstrate(problem, seed=seed))))
    if len(found) <= config.prompt.few_shot:
        raise ConfigError(
            f"prompt.few_shot is {config.prompt.few_shot} but task {config.task.type!r} gave only {len(found)} different training "
            "problems; ask for fewer"
        )
    return tuple(found.values())[: config.prompt.few_shot + 1]
