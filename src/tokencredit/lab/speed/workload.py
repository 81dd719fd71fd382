"""Synthetic workloads of the speed benchmark (models with random weights, batches, a task), and formatting of its results."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config
from transformers.utils import logging as transformers_logging

from tokencredit.errors import ConfigError
from tokencredit.lab.speed.timing import Ceilings
from tokencredit.policy.policy import Policy
from tokencredit.tasks.protocol import Problem, Split
from tokencredit.text import suggest
from tokencredit.types import Rollouts


class Shape(NamedTuple):
    """A decoder with grouped-query attention, a gated MLP and a head tied to the embedding."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp: int
    vocab: int
    family: str = "llama"

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def body(self) -> int:
        """Weights of the matrix products in all layers."""
        return self.layers * (2 * self.width * self.width + 2 * self.width * self.kv_width + 3 * self.width * self.mlp)

    @property
    def head(self) -> int:
        return self.width * self.vocab


TINY = Shape("tiny", layers=4, width=32, heads=4, kv_heads=2, mlp=64, vocab=512)
SMOLLM2_135M = Shape("smollm2-135m", layers=30, width=576, heads=9, kv_heads=3, mlp=1536, vocab=49_152)
QWEN2_500M = Shape("qwen2-0.5b", layers=24, width=896, heads=14, kv_heads=2, mlp=4864, vocab=151_936, family="qwen2")
SHAPES = {shape.name: shape for shape in (TINY, SMOLLM2_135M, QWEN2_500M)}


def find_shapes(names: str) -> tuple[Shape, ...]:
    """Parse shape names separated by commas."""
    requested = [name.strip() for name in names.split(",") if name.strip()]
    for name in requested:
        if name not in SHAPES:
            raise ConfigError(f"shapes names {name!r}; {suggest(name, SHAPES)}")
    if not requested:
        raise ConfigError(f"shapes is empty; name at least one of {', '.join(SHAPES)}")
    return tuple(SHAPES[name] for name in dict.fromkeys(requested))


def config_of(shape: Shape, *, positions: int) -> LlamaConfig | Qwen2Config:
    knobs: dict[str, Any] = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": positions,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return Qwen2Config(**knobs) if shape.family == "qwen2" else LlamaConfig(**knobs)


def build_model(
    shape: Shape, *, device: torch.device, positions: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Random weights, the same for the same seed and device."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config_of(shape, positions=positions), dtype=dtype)
    return model.eval()


class Row(NamedTuple):
    """Tokens of one row: all that go through the layers, and those whose log-prob is wanted."""

    tokens: int
    predicted: int


def forward_flops(shape: Shape, rows: Sequence[Row]) -> float:
    """2 per multiply-add: every token through the layers, causal attention of its row, the head on predicted tokens.

    A row of n tokens has n (n + 1) / 2 pairs; scores and values each take 2 x width per pair and layer.
    """
    tokens, predicted = sum(row.tokens for row in rows), sum(row.predicted for row in rows)
    pairs = sum(row.tokens * (row.tokens + 1) / 2 for row in rows)
    return 2.0 * shape.body * tokens + 4.0 * shape.layers * shape.width * pairs + 2.0 * shape.head * predicted


def update_flops(shape: Shape, rows: Sequence[Row]) -> float:
    """One scoring pass (1 forward) and one pass with its backward (3 forwards); what is computed again does not count."""
    return 4.0 * forward_flops(shape, rows)


class Load(NamedTuple):
    """The size of a batch: groups, and limits of prompt and response length."""

    groups: int
    group_size: int
    prompt: int
    response: int

    @property
    def rows(self) -> int:
        return self.groups * self.group_size

    @property
    def positions(self) -> int:
        return self.prompt + self.response


class Batch(NamedTuple):
    rollouts: Rollouts
    score: Tensor

    @property
    def rows(self) -> list[Row]:
        lengths = self.rollouts.mask.sum(-1).tolist()
        return [Row(len(prompt) + length, length) for prompt, length in zip(self.rollouts.prompts, lengths, strict=True)]

    @property
    def loss_tokens(self) -> int:
        return sum(row.predicted for row in self.rows)

    @property
    def all_tokens(self) -> int:
        return sum(row.tokens for row in self.rows)


def make_batch(shape: Shape, load: Load, *, device: torch.device, seed: int, even: bool = False, ragged_prompts: bool = False) -> Batch:
    """Responses of an eighth to the whole of their limit; `even` makes all as long as may be.

    Prompts are of one length, or, `ragged_prompts`, of half to the whole of their limit. Every group holds both rewards: a group
    with equal rewards has no gradient, and only our code would skip it.
    """
    generator = random.Random(seed)
    prompts, lengths, score = [], [], []
    for _ in range(load.groups):
        width = generator.randint(max(1, load.prompt // 2), load.prompt) if ragged_prompts else load.prompt
        prompt = tuple(generator.randrange(1, shape.vocab - 1) for _ in range(width))
        prompts += [prompt] * load.group_size
        lengths += [load.response if even else generator.randint(max(1, load.response // 8), load.response) for _ in range(load.group_size)]
        right = generator.randint(1, load.group_size - 1)
        score += generator.sample([1.0] * right + [0.0] * (load.group_size - right), load.group_size)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, shape.vocab - 1, (load.rows, load.response), generator=generator)
    length = torch.tensor(lengths)
    mask = torch.arange(load.response) < length[:, None]
    rollouts = Rollouts(
        prompts=tuple(prompts),
        tokens=tokens.where(mask, 0).to(device),
        mask=mask.to(device),
        group=torch.arange(load.groups).repeat_interleave(load.group_size).to(device),
        behavior_logp=torch.full(mask.shape, -1.0).where(mask, 0.0).to(device),
        finished=(length < load.response).to(device),
    )
    return Batch(rollouts, torch.tensor(score, device=device))


def make_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """Token n is written "tn"; the last one ends a response."""
    model = WordLevel({f"t{number}": number for number in range(vocab)}, unk_token="t0")
    written = Tokenizer(model)
    written.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=written, eos_token=f"t{vocab - 1}", pad_token="t0")


def make_policy(shape: Shape, *, device: torch.device, positions: int, seed: int, model: PreTrainedModel | None = None) -> Policy:
    model = build_model(shape, device=device, positions=positions, seed=seed) if model is None else model
    return Policy(model=model, tokenizer=make_tokenizer(shape.vocab), end_tokens=(shape.vocab - 1,))


ENDS = 8
"""Tokens that end a response."""


def save_model(shape: Shape, folder: Path, *, device: torch.device, load: Load, seed: int) -> None:
    """A model folder like any other, whose responses are of ragged length.

    Logits of random weights are nearly normal around 0. Those of the tokens that end a response get so wide a spread c that
    each has exp(c^2 / 2) times the mean probability of another, and all of them together about one in the length limit.
    """
    model = build_model(shape, device=device, positions=load.positions, seed=seed)
    ends = list(range(shape.vocab - ENDS, shape.vocab))
    spread = (2 * math.log(max(shape.vocab / (load.response * ENDS), 1.0))) ** 0.5
    with torch.no_grad():
        rows: Any = model.get_input_embeddings().weight
        rows[ends] *= spread / (float(rows.std()) * shape.width**0.5)
    settings: Any = model.generation_config
    settings.eos_token_id = ends
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)
    make_tokenizer(shape.vocab).save_pretrained(folder)


class RandomRewards:
    """Prompts of random tokens; the parity of a response decides whether it is right."""

    def __init__(self, vocab: int, prompt: int) -> None:
        self.vocab, self.prompt = vocab, prompt

    def problems(self, count: int, *, split: Split, seed: int) -> list[Problem]:
        generator = random.Random(f"{split} {seed}")
        return [
            Problem(prompt=" ".join(f"t{generator.randrange(1, self.vocab - 1)}" for _ in range(self.prompt)), answer="")
            for _ in range(count)
        ]

    def grade(self, problem: Problem, response: str) -> float:
        return float(sum(map(ord, response)) % 2)

    def token_class(self, problem: Problem, response: str) -> list[str]:
        return ["text"] * len(response)


class Bench(NamedTuple):
    device: torch.device
    shapes: tuple[Shape, ...]
    """Parts that measure one model use the first shape; parts that compare models use all."""
    repeats: int
    seed: int
    ceilings: Ceilings
    report: Callable[[str], None]

    @property
    def small(self) -> bool:
        """On a CPU the benchmark runs on little work: a test of the code, not a measurement."""
        return self.device.type != "cuda"

    @property
    def dtype(self) -> str:
        return "float32" if self.small else "bfloat16"

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float32 if self.small else torch.bfloat16


class Shown(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


Result = dict[str, Any]


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:.2f} ms"


def gib(count: float | None) -> str:
    return "-" if count is None else f"{count / 2**30:.2f} GiB"


def times(spread: dict[str, float] | None) -> str:
    """A ratio with its range over the repeats."""
    return "-" if spread is None else f"{spread['median']:.2f}x ({spread['low']:.2f}-{spread['high']:.2f})"


def in_range(spread: dict[str, float], factor: float, unit: str) -> str:
    low, mid, high = (f"{factor * spread[key]:.2f}" for key in ("low", "median", "high"))
    return f"{mid}{unit} ({low} to {high} over repeats)"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
