"""Exports the best checkpoint of a run as a `transformers` model folder with a model card, without optimizer and training state."""

import os
import shutil
from pathlib import Path

from tokencredit.errors import ConfigError
from tokencredit.report.model_card import CONFIG_FILE, card
from tokencredit.report.run_reader import Run
from tokencredit.storage.atomic import atomic_folder, remove_folder
from tokencredit.storage.checkpoints import best_model, parse_position
from tokencredit.storage.manifest import MANIFEST

NOT_THE_MODEL = frozenset(
    {
        MANIFEST, "optimizer.safetensors", "generators.safetensors", "state.json", "clocks.json", "batch.safetensors", "batch.json",
        "adapter.safetensors",
    }
)  # fmt: skip
"""Files of a checkpoint that only a resume needs. Adapters are already merged into the exported weights."""


def export_model(folder: Path, out: Path | None = None) -> Path:
    """Write the model to `out`, by default `model/` in the run folder. An existing model is replaced once the new one is complete."""
    run, target = Run(folder), folder / "model" if out is None else out
    best = best_model(folder)
    place = None if best is None else parse_position(best.name)
    if best is None or place is None:
        raise ConfigError(f"run {folder} has no complete checkpoint, so there is no model to export")
    text = card(run, step=place.step)
    with atomic_folder(target) as fresh:
        for file in sorted(best.iterdir()):
            if file.is_file() and file.name not in NOT_THE_MODEL:
                _link_or_copy(file, fresh / file.name)
        shutil.copyfile(folder / "config.toml", fresh / CONFIG_FILE)
        (fresh / "README.md").write_text(text, encoding="utf-8")
        if target.exists():
            remove_folder(target)
    return target


def _link_or_copy(file: Path, to: Path) -> None:
    """Hard-link weights if the file system supports it, since they are large and never edited. Copy everything else."""
    if file.suffix == ".safetensors":
        try:
            os.link(file, to)
            return
        except OSError:
            pass
    shutil.copyfile(file, to)
