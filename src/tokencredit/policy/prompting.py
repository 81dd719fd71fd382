"""How a problem is put to the model, and where the answer stands in what it writes.

A policy that puts the problems of a task the way a configuration asks for.
"""

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

TAGS_ASKED = "Think inside <think> and </think>. Then give only the final answer inside <answer> and </answer>."
_NO_TAG = r"(?:(?!</?(?:think|answer)>).)*"
_TAGGED = re.compile(rf"\s*<think>{_NO_TAG}</think>\s*<answer>{_NO_TAG}</answer>\s*", re.DOTALL)
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_BEGIN, _MARK = "begin", "\N{LARGE CIRCLE}written\N{LARGE CIRCLE}"


class Shot(NamedTuple):
    """A problem with a right response, shown before the question."""

    prompt: str
    response: str


class Span(NamedTuple):
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompting:
    chat: bool = False
    """Through the tokenizer's chat template, or as plain text."""
    system: str | None = None
    shots: tuple[Shot, ...] = ()
    few_shot: int = 0
    """How many of the shots are shown; a spare one stands in for a shot that is the question itself."""
    separator: str = "\n"
    """Between plain shots."""
    tags: bool = False
    """The model is asked to think in <think> and to answer in <answer>, and only the answer is graded."""

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
        return "\n".join(part for part in (self.system, TAGS_ASKED if self.tags else None) if part) or None

    def written(self, demonstration: str) -> str:
        """A demonstration as the model should write it."""
        return f"<think></think><answer>{demonstration}</answer>" if self.tags else demonstration

    def answer_in(self, text: str) -> Span:
        """The part of a response that is graded: all of it, or what the last answer tags hold; without any, nothing.

        What is still being thought is no answer.
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
    """With the token that begins every text, for tokenizers that have one."""
    return [*_beginning(tokenizer), *tokenizer.encode(text, add_special_tokens=False)]


def _beginning(tokenizer: Any) -> list[int]:
    begin = tokenizer.bos_token_id
    return [begin] if begin is not None and list(tokenizer.encode("0"))[:1] == [begin] else []


def encode_chat(tokenizer: Any, messages: Sequence[dict[str, str]]) -> list[int]:
    return list(tokenizer.encode(render_chat(tokenizer, messages), add_special_tokens=False))


def render_chat(tokenizer: Any, messages: Sequence[dict[str, str]], *, answering: bool = True) -> str:
    """Up to where the assistant begins to write, if it is to answer."""
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=answering))
    except Exception as problem:  # a template is a program of its own and may raise anything
        raise ConfigError(
            f"the model's chat template cannot join {len(messages)} messages: {str(problem)[:300]}; set prompt.style to 'plain'"
        ) from None


_SPOKEN = [{"role": "user", "content": _BEGIN}, {"role": "assistant", "content": _MARK}]


def render_reply(tokenizer: Any, reply: str, *, ended_by: str = "") -> str:
    """What a chat template puts between an assistant's words and its next ones, `reply` being said in between.

    `ended_by`: the text of the token with which the assistant ended its turn, so that it is not written again.
    """
    between = render_chat(tokenizer, [*_SPOKEN, {"role": "user", "content": reply}]).split(_MARK, 1)[-1]
    return between.removeprefix(ended_by)


def turn_end(tokenizer: Any, ends: Sequence[int]) -> int | None:
    """Which of the end tokens a chat template writes behind an assistant's words; None where it writes none of them."""
    behind = render_chat(tokenizer, _SPOKEN, answering=False).split(_MARK, 1)[-1]
    return next((end for end in ends if (text := str(tokenizer.decode([end]))) and behind.startswith(text)), None)


def with_prompting(policy: "Policy", config: TrainConfig, task: Task) -> "Policy":
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
    if not isinstance(task, HasDemonstrations):
        raise ConfigError(f"prompt.few_shot is {config.prompt.few_shot} but task {config.task.type!r} has no demonstrations; set it to 0")
    seed = derive_seed(config.seed, "shots")
    found: dict[str, Shot] = {}
    for problem in task.problems(2 * config.prompt.few_shot + 1, split="train", seed=seed):
        found.setdefault(normalize_prompt(problem.prompt), Shot(problem.prompt, prompting.written(task.demonstrate(problem, seed=seed))))
    if len(found) <= config.prompt.few_shot:
        raise ConfigError(
            f"prompt.few_shot is {config.prompt.few_shot} but task {config.task.type!r} gave only {len(found)} different training "
            "problems; ask for fewer"
        )
    return tuple(found.values())[: config.prompt.few_shot + 1]
