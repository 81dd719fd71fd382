"""Chat messages as the text a model is given."""

from collections.abc import Callable
from typing import Any

from tokencredit.errors import ConfigError
from tokencredit.rollout_io.schema import Place, shortened

Render = Callable[[list[dict[str, Any]]], str]


def chat_renderer(tokenizer: Any) -> Render:
    """Messages to text by the tokenizer's chat template, up to where the assistant begins to write."""

    def render(messages: list[dict[str, Any]]) -> str:
        if tokenizer.chat_template is None:
            raise ConfigError("the model's tokenizer has no chat template to join messages with; take the model the rollouts came from")
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as problem:  # a template is a program of its own and may raise anything
            raise ConfigError(f"the chat template cannot join {shortened(messages)}: {str(problem)[:300]}") from None

    return render


def _filled(message: Any) -> dict[str, Any]:
    """A table gives every message the keys of all; those without a value were not there."""
    return {key: value for key, value in message.items() if value is not None}


def prompt_text(place: Place, prompt: Any, render: Render | None) -> str:
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not all(isinstance(message, dict) for message in prompt):
        raise place.wrong(f"prompt is {shortened(prompt)}; text or a list of chat messages was expected")
    if render is None:
        raise place.wrong("prompt is a list of chat messages, which only the model's chat template can join; give --model DIR")
    try:
        return render([_filled(message) for message in prompt])
    except ConfigError as problem:
        raise place.wrong(str(problem)) from None


def response_text(place: Place, completion: Any) -> str:
    """Text, or the content of one assistant message: that is what the policy wrote, whatever the template puts around it."""
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, list) or not all(isinstance(message, dict) for message in completion):
        raise place.wrong(f"completion is {shortened(completion)}; text or a list of chat messages was expected")
    messages = [_filled(message) for message in completion]
    plain = len(messages) == 1 and set(messages[0]) == {"role", "content"} and isinstance(messages[0]["content"], str)
    if not plain or messages[0]["role"] != "assistant":
        raise place.wrong(
            f"completion is {shortened(messages)}; only one assistant message of plain text can be turned back into what the policy "
            "wrote (tool turns and parsed messages need response_ids and mask)"
        )
    return messages[0]["content"]
