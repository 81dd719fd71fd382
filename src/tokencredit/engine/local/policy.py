"""The policy: a `transformers` causal LM and its tokenizer, from a shipped base or any local folder."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import cast

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from tokencredit.bases import model_folder
from tokencredit.errors import ConfigError

TINY_PARAMETERS = 5_000_000
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, SafetensorError)
"""What `transformers` raises for a folder it cannot make a model of."""


@lru_cache(maxsize=1 << 16)
def _text_of(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Kept, because a batch holds the same few tokens thousands of times and reading one takes as long as a small matrix product."""
    return str(tokenizer.decode([token]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    end_tokens: tuple[int, ...]
    """Any of these ends a response; it is sampled, so it is part of the response."""

    @property
    def device(self) -> torch.device:
        return self.model.device

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: list[int]) -> str:
        """Text of a response without its end token."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.end_tokens else tokens
        return str(self.tokenizer.decode(kept, skip_special_tokens=False))

    def token_texts(self, tokens: list[int]) -> list[str]:
        """Each token read alone."""
        return [_text_of(self.tokenizer, token) for token in tokens]

    def pieces(self, tokens: list[int]) -> list[str]:
        """Text of each token such that they join to the text of all: some tokenizers drop a space when a token is read alone."""
        alone = self.token_texts(tokens)
        if "".join(alone) == self.tokenizer.decode(tokens):
            return alone
        texts = [str(self.tokenizer.decode(tokens[:count])) for count in range(len(tokens) + 1)]
        return [after[len(before) :] for before, after in pairwise(texts)]


def choose_device(asked: str) -> torch.device:
    if asked == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda' but torch sees no CUDA device; use 'cpu' or 'auto'")
    return torch.device("cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu")


def load_policy(name: str, *, device: torch.device, dtype: str, trust_remote_code: bool = False) -> Policy:
    """Weights come from safetensors alone: nothing is ever unpickled."""
    folder = model_folder(name)
    # Bars for shards of a model that loads in an instant would tear our own progress display.
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float64 if dtype == "float64" else torch.float32,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except UNREADABLE as problem:
        raise ConfigError(f"model folder {folder} cannot be loaded as a causal LM: {problem}") from None
    ends = getattr(model.generation_config, "eos_token_id", None)
    ends = tokenizer.eos_token_id if ends is None else ends
    if ends is None:
        raise ConfigError(f"model folder {folder} names no end-of-sequence token; set eos_token_id in its generation_config.json")
    cast(torch.nn.Module, model).to(device)
    model.eval()
    return Policy(model=model, tokenizer=tokenizer, end_tokens=tuple(ends) if isinstance(ends, (list, tuple)) else (int(ends),))


def set_threads(asked: int, model: PreTrainedModel) -> None:
    """0 picks one thread for tiny models on CPU: a second one spends its time spinning."""
    tiny = model.device.type == "cpu" and sum(parameter.numel() for parameter in model.parameters()) < TINY_PARAMETERS
    if asked or tiny:
        torch.set_num_threads(asked or 1)
