"""The implementations that part `update` compares: our update and TRL's, on the same batch, each with its fastest setting."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.forward.modes import choose_forward_mode
from tokencredit.lab.speed.timing import Tried, WaitingStopwatch, allocated, free, peak_bytes, ran_out, seconds, try_once
from tokencredit.lab.speed.trl_loss import TrlKnobs, TrlPath, load_trl, why_no_trl
from tokencredit.lab.speed.workload import Batch, Bench, Load, Shape, build_model, gib, make_policy, make_tokenizer, ms
from tokencredit.optim.optimizer import make_optimizer
from tokencredit.pipeline.credit import BatchEvidence
from tokencredit.rollout.scoring import credit_pipeline, model_facts, plan_steps, score_tokens
from tokencredit.timing import Stopwatch
from tokencredit.trainer.step import StepState, update_policy
from tokencredit.types import Credited, StepPlan, StepResult, TokenScores

OPTIMIZER_STEPS = 4


LARGE = 200_000_000
"""Models with at least this many layer weights get half the rows."""


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
    """The inputs of the optimizer steps."""

    credited: Credited
    plan: StepPlan


class OurPath:
    """Our update, from the scoring pass on."""

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
        credited, _ = self.pipeline.credit(self.batch.rollouts, self.batch.score, known, seed=self.config.seed)
        packed = choose_forward_mode(self.config, self.policy.model).packed
        return Prepared(credited, plan_steps(self.pipeline, self.config, credited, seed=self.config.seed, packed=packed))

    def update(self, prepared: Prepared) -> StepResult:
        batch = StepState(number=0, credited=prepared.credited, plan=prepared.plan)
        update_policy(self.policy, self.optimizer, batch, self.pipeline.objective, self.config)
        return batch.result

    def __call__(self) -> StepResult:
        """Run all stages; `stages` then holds the seconds of each."""
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
    """Score and credit once, for an implementation that takes the same optimizer steps."""
    path = OurPath(bench, shape, load, batch, config)
    prepared = path.credit(path.score())
    del path
    free(bench.device)
    return prepared


class Path(Protocol):
    """One full update; afterwards `stages` holds the seconds of each stage."""

    stages: dict[str, float]

    def __call__(self) -> object: ...


class Setting(NamedTuple):
    """How an implementation splits the batch into passes."""

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

    # With activation checkpointing the largest pass fits.
    return [made(rows // part) for part in ((1,) if checkpointing else (1, 2))]


class Search(NamedTuple):
    """Settings of one implementation, each tried once."""

    settings: list[Setting]
    tried: list[Tried]

    @property
    def best(self) -> Setting | None:
        fit = [(one.seconds, index) for index, one in enumerate(self.tried) if one.seconds is not None]
        return self.settings[min(fit)[1]] if fit else None

    @property
    def compiling(self) -> float:
        """Extra seconds of first calls: compilation, kernel selection, allocation."""
        return sum(max(0.0, one.first - one.seconds) for one in self.tried if one.first is not None and one.seconds is not None)

    def to_json(self) -> list[dict[str, Any]]:
        return [{"setting": setting.name} | one._asdict() for setting, one in zip(self.settings, self.tried, strict=True)]


def search(bench: Bench, name: str, settings: list[Setting]) -> Search:
    tried = []
    for setting in settings:
        tried.append(one := try_once(setting.make, bench.device))
        because = f" ({one.why_not})" if one.why_not else f", first call {ms(one.first)}"
        bench.report(f"  {name}, {setting.name}: {ms(one.seconds)}, {gib(one.peak)}{because}")
    return Search(settings, tried)


class Started(NamedTuple):
    """An implementation after its first update."""

    setting: str
    path: Path
    norms: list[float]
    """Gradient norms of the first update; all implementations start from the same weights."""
    first: float
    resident: int
    """Bytes held between updates: weights, gradients, moments."""
    peak: int | None = None


def start(bench: Bench, name: str, setting: Setting) -> Started | None:
    """Build an implementation and run its first update; None if it runs out of memory."""
    free(bench.device)
    before = allocated(bench.device)
    returned: list[Any] = []
    try:
        path = setting.make()
        first = seconds(lambda: returned.append(path()), bench.device)
    except Exception as problem:
        if not ran_out(problem):
            raise
        bench.report(f"  {name}, {setting.name}: out of memory")
        return None
    free(bench.device)
    bench.report(f"  {name}, {setting.name}: first call {ms(first)}")
    return Started(setting.name, path, gradient_norms(returned[0]), first, allocated(bench.device) - before)


def gradient_norms(returned: Any) -> list[float]:
    return list(returned.gradient_norm) if isinstance(returned, StepResult) else list(returned)


class Contest:
    """All implementations compared in one run, each with its fastest setting."""

    def __init__(self, bench: Bench, shape: Shape, load: Load, batch: Batch) -> None:
        self.bench, self.shape, self.load, self.batch = bench, shape, load, batch
        self.spent = Stopwatch()
        self.searched: dict[str, Search] = {}
        self.chosen: dict[str, Setting] = {}
        self.left_out: dict[str, str] = {}

    def searching(self, name: str, settings: list[Setting]) -> None:
        with self.spent.stage("search"):
            found = self.searched[name] = search(self.bench, name, settings)
        if found.best is None:
            self.left_out[name] = "out of memory"
        else:
            self.chosen[name] = found.best

    def ours(self, name: str, recipe: str, *, recompute: bool = False, compiles: str = "auto") -> None:
        """Add a variant of ours with the pass size that was fastest for dapo."""
        fit = self.searched["ours dapo"].best
        alike = our_settings(self.bench, self.shape, self.load, self.batch, recipe, recompute=recompute, compiles=compiles)
        self.chosen[name] = next((setting for setting in alike if fit is not None and setting.name == fit.name), alike[0])

    def gather(self, *, even: bool) -> None:
        bench, shape, load, batch = self.bench, self.shape, self.load, self.batch
        self.searching("ours dapo", our_settings(bench, shape, load, batch, "dapo"))
        if why_no_trl() is None:
            with self.spent.stage("prepare"):
                load_trl()
                config = bench_config(bench, load, "dapo", max_tokens=load.rows * load.positions)
                prepared = prepare(bench, shape, load, batch, config)
            self.searching("trl", trl_settings(bench, shape, load, prepared, config, checkpointing=False))
            if not even:
                self.chosen["trl checkpointing"] = trl_settings(bench, shape, load, prepared, config, checkpointing=True)[0]
        if not even:
            self.ours("ours delta", "delta")
            self.ours("ours dapo, layers computed again", "dapo", recompute=True)
            if shape == bench.shapes[0]:
                self.ours("ours dapo, not compiled", "dapo", compiles="off")

    def start(self) -> dict[str, Started]:
        """Run every implementation twice: once alone, then in turn with all of them resident in memory, as in the measurement."""
        found: dict[str, Started] = {}
        with self.spent.stage("warm up"):
            for name, setting in self.chosen.items():
                if (one := start(self.bench, name, setting)) is None:
                    self.left_out[name] = "out of memory"
                else:
                    found[name] = one
            for name, one in found.items():
                peak = peak_bytes(one.path, self.bench.device, before=allocated(self.bench.device))
                found[name] = one._replace(peak=None if peak is None else peak + one.resident)
        return found
