"""`tokencredit credit`: read a rollout file, assign credit, write one number per token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tokencredit.commands.flags import check_recipe_agrees
from tokencredit.config.resolve import read_toml, resolve
from tokencredit.config.train import TrainConfig
from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.models import model_folder
from tokencredit.rollout_io.write import check_out, write_columns
from tokencredit.text import sanitize

Layer = Mapping[str, Any]

UNTIL_READ: Layer = {"sampling": {"group_size": 2}, "optimizer": {"steps_per_batch": 1, "max_tokens": 10**9}}
"""Placeholder settings: the file determines them, so the rules about them must not fire before it is read."""


@dataclass(frozen=True)
class CreditOptions:
    """Assign credit to stored rollouts with the stages of a recipe, as in training. File format: docs/rollout-files.md."""

    rollouts: Annotated[Path, tyro.conf.Positional]
    """A rollout file, TRL's completions_*.parquet, or verl's {step}.jsonl."""
    configs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Config files (.toml); later files override earlier ones."""
    recipe: str | None = None
    """Recipe; default: that of the config files, else delta."""
    model: str | None = None
    """Model that wrote the rollouts: a shipped base or a folder. Default: that of the config files, else none."""
    step: int | None = None
    """Training step to read, if the file holds several."""
    out: Path | None = None
    """File for one row per token (.parquet or .jsonl). Default: print only the summary."""
    force: bool = False
    """Overwrite the output."""


def config_layers(paths: Sequence[Path], *, recipe: str | None, model: str | None) -> list[Layer]:
    """Config files from left to right, then the flags."""
    for path in paths:
        if path.suffix != ".toml":
            raise ConfigError(f"{path} is not a config file (.toml); give one rollout file")
    layers: list[Layer] = [read_toml(path) for path in paths]
    for path, layer in zip(paths, layers, strict=True):
        check_recipe_agrees(str(path), layer, recipe)
    given = {"recipe": recipe, "model": model}
    return [*layers, {name: value for name, value in given.items() if value is not None}]


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(CreditOptions, args=list(arguments), prog="tokencredit credit")
    layers = config_layers(options.configs, recipe=options.recipe, model=options.model)
    model = next((layer["model"] for layer in reversed(layers) if "model" in layer), None)
    draft = resolve([*layers, UNTIL_READ])
    if model is not None:
        model_folder(model)
    if options.out is not None:
        check_out(options.out, force=options.force)
    columns, notes = _credit(options, layers, model, draft)
    if options.out is not None:
        write_columns(options.out, columns, force=options.force)
    for line in (*notes, *_summary(columns)):
        print(sanitize(line))
    print(f"written to {options.out}" if options.out is not None else "to save one row per token: --out FILE")
    return EXIT_OK


def _credit(
    options: CreditOptions, layers: list[Layer], model: str | None, draft: TrainConfig
) -> tuple[dict[str, list[Any]], tuple[str, ...]]:
    """The token table, and notes about assumptions. torch is imported here, not at the top of the module."""
    from tokencredit.analysis.offline import credit_stored, credit_without_model, offline_columns, offline_config, offline_notes
    from tokencredit.policy.policy import choose_device, load_policy, set_threads
    from tokencredit.rollout_io.read import read_rollouts

    policy = None if model is None else load_policy(model, device=choose_device(draft.device), dtype=draft.dtype)
    if policy is not None:
        set_threads(draft.threads, policy.model)
    stored = read_rollouts(options.rollouts, policy, step=options.step)
    config = offline_config(stored, layers)
    found = credit_without_model(stored, config) if policy is None else credit_stored(policy, stored, config).credited
    return offline_columns(stored, found, policy), (*stored.notes, *offline_notes(config))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _summary(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """Mean credit by sign of the advantage, coefficients by token class, and the differences from the file's log-probs and advantages."""
    credit, advantage = columns["credit"], columns["advantage"]
    lines = [f"{len(credit):,} tokens of {len(set(columns['row']))} responses in {len(set(columns['group']))} groups"]
    for name, sign in (("positive", 1), ("negative", -1), ("zero", 0)):
        sizes = [abs(value) for value, side in zip(credit, advantage, strict=True) if (side > 0) - (side < 0) == sign]
        if sizes:
            lines.append(f"  {name} advantage: {len(sizes):,} tokens, mean |credit| {_mean(sizes):.4g}")
    by_class: dict[str, list[float]] = {}
    for label, coefficient in zip(columns["token_class"], columns["coefficient"], strict=True):
        if coefficient is not None:
            by_class.setdefault(label or "tokens", []).append(coefficient)
    for label, values in by_class.items():
        lines.append(f"  coefficient of {label}: {min(values):.4g} to {max(values):.4g}, mean {_mean(values):.4g}")
    for here, there, what in (
        ("logp", "behavior_logp", "token log-probs of the model and of the sampler"),
        ("advantage", "given_advantage", "advantages computed here and in the file"),
    ):
        gaps = [abs(a - b) for a, b in zip(columns[here], columns[there], strict=True) if None not in (a, b) and a == a and b == b]
        if gaps:
            lines.append(f"  {what} differ by {_mean(gaps):.2g} on average, by {max(gaps):.2g} at most")
    return lines
