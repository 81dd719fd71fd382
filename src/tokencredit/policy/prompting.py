"""Prompting: the prompt text of a problem, few-shot examples, chat templates, and the answer inside a response."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.seeds import derive_seed
from tokencredit.tasks import HasDemonstrations, Task
from tokencredit.tasks.split import normalize_prompt

if TYPE_CHECKING:
    from tokencredit.policy.policy import Policy

TAGS_INSTRUCTION = "Think inside <think> and </think>. Then give only the final answer inside <answer> and </answer>."
_NO_TAG = r"(?:(?!</?(?:think|answer)>).)*"
_TAGGED = re.compile(rf"\s*<think>{_NO_TAG}</think>\s*<answer>{_NO_TAG}</answer>\s*", re.DOTALL)
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_BEGIN, _MARK = "begin", "\N{LARGE CIRCLE}written\N{LARGE CIRCLE}"


class Shot(NamedTuple):
    """A problem with a right response: a few-shot example."""

    prompt: str
    response: str


class Span(NamedTuple):
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompting:
    chat: bool = False
    """Use the tokenizer's chat template; else plain text."""
    system: str | None = None
    shots: tuple[Shot, ...] = ()
    few_shot: int = 0
    """Number of shots in a prompt; a spare one replaces a shot that equals the problem."""
    separator: str = "\n"
    """Between plain shots."""
    tags: bool = False
    """Instruct the model to think in <think> and to answer in <answer>; only the answer is graded."""

    def messages(self, prompt: str) -> list[dict[str, str]]:
        shown = self._shown(prompt)
        turns = [{"role": role, "content": text} for shot in shown for role, text in (("user", shot.prompt), ("assistant", shot.response))]
        system = self._system()
        return [*([{"role": "system", "content": system}] if system else []), *turns, {"role": "user", "content": prompt}]

    def text(self, prompt: str) -> str:
        system = self._system()
        shots = "".join(f"{shot.prompt}{shot.response}{self.separator}" for shot in self._shown(prompt))
        return f"{system}\n\n{shots}{prompt}" if system else f"{shots}{prompt}"

    def _shown(self, prompt: str) -> list[Shot]:
        return [shot for shot in self.shots if normalize_prompt(shot.prompt) != normalize_prompt(prompt)][: self.few_shot]

    def _system(self) -> str | None:
        return "\n".join(part for part in (self.system, TAGS_INSTRUCTION if self.tags else None) if part) or None

    def written(self, demonstration: str) -> str:
        """A demonstration in the format that the model should write."""
        return f"<think></think><answer>{demonstration}</answer>" if self.tags else demonstration

    def answer_in(self, text: str) -> Span:
        """The graded part of a response: all of it or, with tags, the content of the last answer tags; empty without any.

        Tags inside an unfinished <think> do not count.
        """
        if not self.tags:
            return Span(0, len(text))
        thought = text.rfind("</think>")
        found = [] if thought < 0 and "<think>" in text else list(_ANSWER.finditer(text, max(0, thought)))
        return Span(*found[-1].span(1)) if found else Span(len(text), len(text))

    def well_formed(self, text: str) -> bool:
        return not self.tags or _TAGGED.fullmatch(text) is not None


PLAIN = Prompting()


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """Encode with the beginning-of-text token, for tokenizers that add one."""
    return [*_beginning(tokenizer), *tokenizer.encode(text, add_special_tokens=False)]


def _beginning(tokenizer: Any) -> list[int]:
    begin = tokenizer.bos_token_id
    return [begin] if begin is not None and list(tokenizer.encode("0"))[:1] == [begin] else []


def encode_chat(tokenizer: Any, messages: Sequence[dict[str, str]]) -> list[int]:
    return list(tokenizer.encode(render_chat(tokenizer, messages), add_special_tokens=False))


def render_chat(tokenizer: Any, messages: Sequence[dict[str, str]], *, answering: bool = True) -> str:
    """Render up to the assistant's next turn, if `answering`."""
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=answering))
    except Exception as problem:  # a template is a program and may raise anything
        raise ConfigError(
            f"the model's chat template cannot join {len(messages)} messages: {str(problem)[:300]}; set prompt.style to 'plain'"
        ) from None


_EXCHANGE = [{"role": "user", "content": _BEGIN}, {"role": "assistant", "content": _MARK}]


def render_reply(tokenizer: Any, reply: str, *, ended_by: str = "") -> str:
    """The text that a chat template puts between two assistant turns for the user message `reply`.

    `ended_by`: the text of the token with which the assistant ended its turn, which is left out here.
    """
    between = render_chat(tokenizer, [*_EXCHANGE, {"role": "user", "content": reply}]).split(_MARK, 1)[-1]
    return between.removeprefix(ended_by)


def turn_end(tokenizer: Any, ends: Sequence[int]) -> int | None:
    """The end token that a chat template writes after an assistant turn; None if it writes none of them."""
    after = render_chat(tokenizer, _EXCHANGE, answering=False).split(_MARK, 1)[-1]
    return next((end for end in ends if (text := str(tokenizer.decode([end]))) and after.startswith(text)), None)


def with_prompting(policy: "Policy", config: TrainConfig, task: Task) -> "Policy":
    """The policy with the prompt format, few-shot examples and stop strings of a configuration."""
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
    """Few-shot examples from training problems; held-out problems are never shown. Extra problems replace duplicates."""
    if not isinstance(task, HasDemonstrations):
        raise ConfigError(f"prompt.few_shot is {config.prompt.few_shot} but task {config.task.type!r} has no demonstrations; set it to 0")
    seed = derive_seed(config.seed, "shots")
    found: dict[str, Shot] = {}
    for problem in task.problems(2 * config.prompt.few_shot + 1, split="train", seed=seed):
        found.setdefault(normalize_prompt(problem.prompt), Shot(problem.prompt, prompting.written(task.demonstrate(problem, seed=seed))))
    if len(found) <= config.prompt.few_shot:
        raise ConfigError(
            f"prompt.few_shot is {config.prompt.few_shot} but task {config.task.type!r} gave only {len(found)} different training "
            "problems; set it lower"
        )
    return tuple(found.values())[: config.prompt.few_shot + 1]
