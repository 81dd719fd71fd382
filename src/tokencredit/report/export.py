"""The best checkpoint of a run as an ordinary `transformers` folder with a card: nothing of the optimizer, nothing of the run's state."""

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
"""What a checkpoint holds for a resume. Adapters are merged into the weights beside them."""


def export_model(folder: Path, out: Path | None = None) -> Path:
    """Write the run's model to `out`, by default `model/` in the run; one that is there gives way when the new one is whole."""
    run, target = Run(folder), folder / "model" if out is None else out
    best = best_model(folder)
    place = None if best is None else parse_position(best.name)
    if best is None or place is None:
        raise ConfigError(f"run {folder} has no whole checkpoint, so there is no model to export")
    text = card(run, step=place.step)
    with atomic_folder(target) as fresh:
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
