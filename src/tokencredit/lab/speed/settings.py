"""Contenders of part `update`, and the ways in which each may cut its passes."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from tokencredit.config.train import TrainConfig
from tokencredit.lab.speed.our_update import OPTIMIZER_STEPS, OurPath, Prepared, bench_config
from tokencredit.lab.speed.part import Bench
from tokencredit.lab.speed.shapes import Shape, build_model
from tokencredit.lab.speed.trl_loss import TrlKnobs, TrlPath
from tokencredit.lab.speed.workload import Batch, Load, make_tokenizer


class Path(Protocol):
    """A whole update; afterwards `stages` holds the seconds of its stages."""

    stages: dict[str, float]

    def __call__(self) -> object: ...


class Setting(NamedTuple):
    """How a contender cuts its passes."""

    name: str
    make: Callable[[], Path]


def our_settings(
    bench: Bench, shape: Shape, load: Load, batch: Batch, recipe: str, *, recompute: bool = False, compiles: str = "auto"
) -> list[Setting]:
    def made(tokens: int) -> Setting:
        config = bench_config(bench, load, recipe, max_tokens=tokens, recompute=recompute, compiles=compiles)
        return Setting(f"passes of {tokens} tokens", lambda: OurPath(bench, shape, load, batch, config))

    return [made(tokens) for tokens in ((2 * load.positions, load.rows * load.positions) if bench.small else (32_768, 65_536))]


def trl_settings(bench: Bench, shape: Shape, load: Load, prepared: Prepared, config: TrainConfig, *, checkpointing: bool) -> list[Setting]:
    rows = load.rows // OPTIMIZER_STEPS

    def made(rows_per_pass: int) -> Setting:
        def make() -> TrlPath:
            chosen = config.optimizer
            return TrlPath(
                build_model(shape, device=bench.device, positions=load.positions, seed=bench.seed),
                make_tokenizer(shape.vocab),
                prepared.credited,
                prepared.plan,
                TrlKnobs(rows_per_pass, checkpointing),
                learning_rate=chosen.learning_rate,
                gradient_clip=chosen.gradient_clip,
                betas=(chosen.beta1, chosen.beta2),
            )

        return Setting(f"passes of {rows_per_pass} rows", make)

    # Layers that are computed again leave room for the largest pass.
    return [made(rows // part) for part in ((1,) if checkpointing else (1, 2))]
