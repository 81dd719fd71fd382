"""Stream the text of one response while it is sampled, and keep the conversation for the next one."""

from collections.abc import Iterator

import torch
from transformers import DynamicCache

from tokencredit.errors import ConfigError, GuardError
from tokencredit.forward.padded import precision
from tokencredit.kernels import at_least_float32
from tokencredit.policy.policy import Policy
from tokencredit.policy.prompting import encode_chat
from tokencredit.policy.token_text import HALF


@torch.no_grad()
def draw(policy: Policy, prompt: list[int], *, max_new_tokens: int, temperature: float, seed: int, dtype: str = "float32") -> Iterator[int]:
    """Sample tokens one by one, the end token included; temperature 0 takes the most probable."""
    generator = torch.Generator(device=policy.device).manual_seed(seed)
    cache = DynamicCache(config=policy.model.config)
    ids = torch.tensor([prompt], device=policy.device)
    for _ in range(max_new_tokens):
        with precision(policy.model, dtype):
            logits = policy.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        logits = at_least_float32(logits)
        if logits.isnan().any():
            raise GuardError("the policy's probabilities are not finite; it has broken down")
        ids = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator) if temperature else logits.argmax(-1, True)
        token = int(ids)
        yield token
        if token in policy.end_tokens:
            return


def stream(
    policy: Policy, prompt: list[int], *, max_new_tokens: int, temperature: float, seed: int, dtype: str = "float32"
) -> Iterator[str]:
    """Text of a response in pieces, up to its end token or a stop string; the pieces join to the text of `Policy.decode`."""
    tokens: list[int] = []
    shown = text = ""
    for token in draw(policy, prompt, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, dtype=dtype):
        tokens.append(token)
        written = str(policy.tokenizer.decode(tokens, skip_special_tokens=False))
        text = policy.decode(tokens)
        if any(stop in written for stop in policy.stops):
            break
        safe = text[: len(text) - _held_back(text, policy.stops)]
        # The next token may still change how the last character decodes.
        if safe.startswith(shown) and len(safe) > len(shown):
            yield safe[len(shown) :]
            shown = safe
    if text[len(shown) :]:
        yield text[len(shown) :]


def _held_back(text: str, stops: tuple[str, ...]) -> int:
    """Characters at the end that may be an incomplete character or the beginning of a stop string."""
    halves = len(text) - len(text.rstrip(HALF))
    begun = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    return max([halves, *begun])


class Conversation:
    """The messages so far, for a model with a chat template; without one, or with a run's own prompt format, each text alone."""

    def __init__(self, policy: Policy, *, remembers: bool) -> None:
        self.policy, self.remembers = policy, remembers
        self.turns: list[dict[str, str]] = []

    def ask(self, text: str) -> list[int]:
        """The prompt tokens of `text`; a ConfigError where the model cannot read them."""
        policy = self.policy
        if text.encode("utf-8", "replace").decode() != text:
            raise ConfigError("this is no text: it holds bytes that are no characters")
        *before, last = policy.prompting.messages(text)
        prompt = encode_chat(policy.tokenizer, [*before, *self.turns, last]) if policy.prompting.chat else policy.ask(text)
        unknown = policy.tokenizer.unk_token_id
        if not prompt or (unknown is not None and unknown in prompt):
            raise ConfigError(f"this model has no tokens for {text[:60]!r}; its tokenizer knows other characters")
        if len(prompt) >= self.room():
            raise ConfigError(f"the model reads {self.room():,} tokens, and this takes {len(prompt):,}; start over, or ask for less")
        return prompt

    def room(self) -> int:
        return int(getattr(self.policy.model.config, "max_position_embeddings", None) or 10**9)

    def heard(self, text: str, response: str) -> None:
        if self.remembers:
            self.turns += [{"role": "user", "content": text}, {"role": "assistant", "content": response}]

    def start_over(self) -> None:
        self.turns.clear()
