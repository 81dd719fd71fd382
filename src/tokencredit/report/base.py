"""What is known of the model a run began with: a name that may be told, and its license where it states one."""

import json
import re
from contextlib import suppress
from pathlib import Path

from tokencredit.bases import base_folder, shipped_bases
from tokencredit.models import is_hub_id
from tokencredit.models.smollm import NAME as SMOLLM
from tokencredit.models.smollm import cache_folder

ORIGINALS = {SMOLLM: "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Names of ours for models that have one on the hub."""
QUANTIZED = "The base was converted from a quantized file: its weights had been rounded before training began."
LICENSE = re.compile(r"license:[ \t]*[\"']?([A-Za-z0-9][\w.+-]{0,60})[\"']?[ \t]*")


def base_name(model: str) -> str:
    """Of a folder the last part only: where it lies is nobody's business."""
    if model in ORIGINALS:
        return ORIGINALS[model]
    if model not in shipped_bases() and is_hub_id(model) and not Path(model).is_dir():
        return model.partition("@")[0]
    return Path(model).name


def base_license(model: str) -> str | None:
    """The license in the header of the base's README.md; None where there is no such line."""
    with suppress(OSError, ValueError):
        text = (_local(model) / "README.md").read_text(encoding="utf-8")
        header = text.split("---", 2)[1] if text.startswith("---") else ""
        found = [match[1] for line in header.splitlines() if (match := LICENSE.fullmatch(line))]
        return found[0] if found else None
    return None


def is_quantized(model: str) -> bool:
    if model == SMOLLM:
        return True
    with suppress(OSError, ValueError):
        return "quantization_config" in json.loads((_local(model) / "config.json").read_text(encoding="utf-8"))
    return False


def _local(model: str) -> Path:
    """Where the base lies on this machine, if it does; nothing is ever fetched for a card."""
    if model in shipped_bases():
        return base_folder(model)
    if model == SMOLLM:
        return next(iter(sorted(cache_folder().glob("smollm2-*"))), Path("nowhere"))
    if is_hub_id(model) and not Path(model).is_dir():
        return _in_hub_cache(model)
    return Path(model)


def _in_hub_cache(model: str) -> Path:
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = model.partition("@")
    found = try_to_load_from_cache(repository, "config.json", revision=revision or None)
    return Path(found).parent if isinstance(found, str) else Path("nowhere")
