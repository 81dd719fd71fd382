"""A run's model as a folder to hand on: weights, tokenizer, and a card that says what was done. Reads the run folder only.

The best checkpoint of a run as an ordinary `transformers` folder with a card: nothing of the optimizer, nothing of the run's state.

What is known of the model a run began with: a name that may be told, and its license where it states one.
"""

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from tokencredit.bases import base_folder, shipped_bases
from tokencredit.errors import ConfigError
from tokencredit.models import is_hub_id
from tokencredit.models.smollm import NAME as SMOLLM
from tokencredit.models.smollm import cache_folder
from tokencredit.report.model_card import CONFIG_FILE, card
from tokencredit.report.run_reader import Run
from tokencredit.storage.atomic import publishing, remove_folder
from tokencredit.storage.checkpoints import best_model, named_place
from tokencredit.storage.manifest import MANIFEST

NOT_THE_MODEL = frozenset(
    {
        MANIFEST, "optimizer.safetensors", "generators.safetensors", "state.json", "clocks.json", "batch.safetensors", "batch.json",
        "adapter.safetensors",
    }
)  # fmt: skip
"""What a checkpoint holds for a resume. Adapters are merged into the weights beside them."""


def export_model(folder: Path, out: Path | None = None) -> Path:
    """Write the run's model to `out`, by default `model/` in the run; one that is there gives way when the new one is whole."""
    run, target = Run(folder), folder / "model" if out is None else out
    best = best_model(folder)
    place = None if best is None else named_place(best.name)
    if best is None or place is None:
        raise ConfigError(f"run {folder} has no whole checkpoint, so there is no model to export")
    text = card(run, step=place.step)
    with publishing(target) as fresh:
        for file in sorted(best.iterdir()):
            if file.is_file() and file.name not in NOT_THE_MODEL:
                _take(file, fresh / file.name)
        shutil.copyfile(folder / "config.toml", fresh / CONFIG_FILE)
        (fresh / "README.md").write_text(text, encoding="utf-8")
        if target.exists():
            remove_folder(target)
    return target


def _take(file: Path, to: Path) -> None:
    """Weights are linked where the file system can: they are large and nobody edits them. The rest is copied."""
    if file.suffix == ".safetensors":
        try:
            os.link(file, to)
            return
        except OSError:
            pass
    shutil.copyfile(file, to)


__all__ = ["export_model"]


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
