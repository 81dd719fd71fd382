"""The engine's own path from a given batch to moved weights: score, credit, optimizer steps."""

from typing import NamedTuple

from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.forward.modes import choose_forward_mode
from tokencredit.lab.speed.part import Bench
from tokencredit.lab.speed.timing import WaitingStopwatch, free
from tokencredit.lab.speed.workload import Batch, Load, Shape, make_policy
from tokencredit.optim.optimizer import make_optimizer
from tokencredit.pipeline.credit import BatchEvidence
from tokencredit.rollout.scoring import credit_pipeline, model_facts, plan_steps, score_tokens
from tokencredit.trainer.step import StepState, update_policy
from tokencredit.types import Credited, StepPlan, StepResult, TokenScores

OPTIMIZER_STEPS = 4


LARGE = 200_000_000
"""Weights of layers from which half the rows are work enough."""


def load_of(bench: Bench, shape: Shape) -> Load:
    if bench.small:
        return Load(4, 4, 6, 12)
    return Load(16 if shape.body >= LARGE else 32, 8, 64, 512)


def bench_config(bench: Bench, load: Load, recipe: str, *, max_tokens: int, recompute: bool = False, compiles: str = "auto") -> TrainConfig:
    optimizer = {
        "steps_per_batch": OPTIMIZER_STEPS,
        "max_tokens": max_tokens,
        "learning_rate": 1e-6,
        "gradient_checkpointing": recompute,
    }
    sampling = {"prompts": load.groups, "group_size": load.group_size, "max_new_tokens": load.response}
    return resolve(
        [
            {
                "recipe": recipe,
                "seed": bench.seed,
                "device": bench.device.type,
                "dtype": bench.dtype,
                "scoring": "pass",
                "compile": compiles,
                "sampling": sampling,
                "optimizer": optimizer,
                "diagnose": {"every": 0},
            }
        ]
    )


class Prepared(NamedTuple):
    """What the optimizer steps need."""

    credited: Credited
    plan: StepPlan


class OurPath:
    """The engine's own stages from the scoring pass on."""

    def __init__(self, bench: Bench, shape: Shape, load: Load, batch: Batch, config: TrainConfig) -> None:
        self.batch, self.config = batch, config
        self.policy = make_policy(shape, device=bench.device, positions=load.positions, seed=bench.seed)
        self.pipeline = credit_pipeline(config)
        self.optimizer = make_optimizer(config, self.policy.model)
        self.stages: dict[str, float] = {}

    def score(self, *, keep_hidden: bool | None = None) -> TokenScores:
        keep = self.pipeline.keeps_hidden if keep_hidden is None else keep_hidden
        return score_tokens(self.config, self.policy.model, self.batch.rollouts, keep_hidden=keep)

    def credit(self, evidence: TokenScores) -> Prepared:
        known = BatchEvidence(evidence, model=model_facts(self.policy))
        credited = self.pipeline.credit(self.batch.rollouts, self.batch.score, known, seed=self.config.seed).credited
        packed = choose_forward_mode(self.config, self.policy.model).packed
        return Prepared(credited, plan_steps(self.pipeline, self.config, credited, seed=self.config.seed, packed=packed))

    def update(self, prepared: Prepared) -> StepResult:
        batch = StepState(number=0, credited=prepared.credited, plan=prepared.plan)
        update_policy(self.policy, self.optimizer, batch, self.pipeline.objective, self.config)
        return batch.result

    def __call__(self) -> StepResult:
        """The whole of it; `stages` then holds the seconds of each."""
        watch = WaitingStopwatch(self.policy.device)
        with watch.stage("score"):
            evidence = self.score()
        with watch.stage("credit"):
            prepared = self.credit(evidence)
        del evidence
        with watch.stage("update"):
            result = self.update(prepared)
        self.stages = dict(watch.seconds)
        return result


def prepare(bench: Bench, shape: Shape, load: Load, batch: Batch, config: TrainConfig) -> Prepared:
    """What another path needs to take the same optimizer steps."""
    path = OurPath(bench, shape, load, batch, config)
    prepared = path.credit(path.score())
    del path
    free(bench.device)
    return prepared
