"""The policy: a `transformers` causal LM with its tokenizer, from a shipped base or a local folder."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from tokencredit.config.train import TAGS
from tokencredit.errors import ConfigError
from tokencredit.models import model_folder
from tokencredit.policy.prompting import PLAIN, Prompting, encode_chat, encode_plain, turn_end
from tokencredit.policy.sampling import Sampler
from tokencredit.policy.token_text import joining_pieces, text_alone

TINY_PARAMETERS = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    end_tokens: tuple[int, ...]
    """Each of these ends a response and, being sampled, is part of it."""
    prompting: Prompting = PLAIN
    stops: tuple[str, ...] = ()
    """A response ends once its text contains one of these; the graded text ends before it."""
    sampler: Sampler | None = None
    """Samples responses; None: the plain loop."""

    @property
    def device(self) -> torch.device:
        return self.model.device

    def release(self) -> None:
        """Free the memory that the sampler keeps between calls."""
        if self.sampler is not None:
            self.sampler.release()

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def ask(self, prompt: str) -> list[int]:
        """The prompt tokens of a problem."""
        if self.prompting.chat:
            return encode_chat(self.tokenizer, self.prompting.messages(prompt))
        return encode_plain(self.tokenizer, self.prompting.text(prompt))

    def decode(self, tokens: list[int]) -> str:
        """Text of a response without its end token, and up to a stop string."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.end_tokens else tokens
        return self.up_to_stop(str(self.tokenizer.decode(kept, skip_special_tokens=False)))

    def up_to_stop(self, text: str) -> str:
        """The text before the first stop string; a stop string that closes a tag is included."""
        found = [(at, at + len(stop) * self._closes_a_tag(stop)) for stop in self.stops if (at := text.find(stop)) >= 0]
        return text[: min(found, default=(0, len(text)))[1]]

    def _closes_a_tag(self, stop: str) -> bool:
        return self.prompting.tags and any(tag in stop for tag in TAGS)

    def finish(self, text: str) -> list[int]:
        """The tokens of a complete response: up to a stop string, or with the token that ends a turn."""
        if self.stops:
            text = self.up_to_stop(text)
            return self.encode(text if text.endswith(self.stops) else text + self.stops[0])
        own = self.tokenizer.eos_token_id if self.tokenizer.eos_token_id in self.end_tokens else None
        end = turn_end(self.tokenizer, self.end_tokens) if self.prompting.chat else None
        return [*self.encode(text), end if end is not None else own if isinstance(own, int) else self.end_tokens[0]]

    def answer(self, tokens: list[int]) -> str:
        """The part of a response that the verifier reads."""
        text = self.decode(tokens)
        start, end = self.prompting.answer_in(text)
        return text[start:end]

    def token_texts(self, tokens: list[int]) -> list[str]:
        """Each token decoded alone."""
        return [text_alone(self.tokenizer, token) for token in tokens]

    def pieces(self, tokens: list[int]) -> list[str]:
        """Text per token such that the pieces join to the full text; some tokenizers drop a space when a token is decoded alone."""
        return joining_pieces(self.tokenizer, tokens)


def choose_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda' but torch sees no CUDA device; use 'cpu' or 'auto'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def load_policy(name: str, *, device: torch.device, dtype: str, weights: str = "float32", trust_remote_code: bool = False) -> Policy:
    """Load from safetensors only: nothing is unpickled."""
    folder = model_folder(name)
    # transformers' shard progress bars would break our own progress display.
    transformers_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float64 if dtype == "float64" else torch.float32 if weights == "float32" else torch.bfloat16,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
        model, found = loaded
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as problem:  # each library raises its own classes, tokenizers a plain Exception
        raise ConfigError(f"model folder {folder} cannot be loaded as a causal LM: {str(problem)[:500]}") from None
    # transformers would initialise missing weights at random and only log it.
    if lacking := sorted(found["missing_keys"]):
        raise ConfigError(
            f"model folder {folder} lacks {len(lacking)} weights of its config.json, {lacking[0]} among them; save the complete model"
        )
    ends = getattr(model.generation_config, "eos_token_id", None)
    ends = tokenizer.eos_token_id if ends is None else ends
    ends = tuple(ends) if isinstance(ends, list | tuple) else () if ends is None else (ends,)
    # A chat model may end its turns with a token that only its tokenizer names.
    ends += tuple(end for end in (tokenizer.eos_token_id,) if end is not None and end not in ends)
    if not ends:
        raise ConfigError(f"model folder {folder} names no end-of-sequence token; set eos_token_id in its generation_config.json")
    size = model.get_input_embeddings().weight.shape[0]
    if odd := [end for end in ends if not isinstance(end, int) or isinstance(end, bool) or not 0 <= end < size]:
        raise ConfigError(f"model folder {folder}: eos_token_id is {odd[0]!r:.60}; it must be a token id below {size}")
    cast(torch.nn.Module, model).to(device)
    model.eval()
    with torch.no_grad():
        # Weights may be memory-mapped from the file; there, rounding in a matrix product depends on their alignment.
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()
    return Policy(model=model, tokenizer=tokenizer, end_tokens=ends)


def set_threads(threads: int, model: PreTrainedModel) -> None:
    """0 chooses one thread for tiny models on a CPU, where a second thread only spins."""
    tiny = model.device.type == "cpu" and sum(parameter.numel() for parameter in model.parameters()) < TINY_PARAMETERS
    if threads or tiny:
        torch.set_num_threads(threads or 1)
