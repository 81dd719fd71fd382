"""One frozen record per stage; each holds the previous one and checks itself when it is built.

    Rollouts -> Scored -> Credited -> StepPlan -> StepResult

`None` means not assigned, `0.0` assigned zero, and a NaN reward ungraded.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Aggregation = Literal["token-mean", "sequence-mean", "constant"]
"""How the token losses of one optimizer step are averaged."""

Evidence = Literal["logp", "entropy", "hidden", "revisions", "prefix-values", "greedy-scores"]
"""Evidence that a stage may need beyond rollouts and scores: from the scoring pass (logp, entropy, hidden), or sampled."""

State = Mapping[str, Any]
"""The state of a method between steps. JSON values only, because checkpoints hold it."""


def _size(tensor: Tensor) -> str:
    return "x".join(str(n) for n in tensor.shape) or "scalar"


def _same_shape(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    if tensor.shape != other.shape:
        raise ValueError(f"{name} is {_size(tensor)} but {other_name} is {_size(other)}; they must be the same")


def _one_per_row(name: str, tensor: Tensor, rows: int) -> None:
    if tensor.shape != (rows,):
        raise ValueError(f"{name} is {_size(tensor)} but there are {rows} responses; it must hold one value per response")


def _none_where(name: str, tensor: Tensor, bad: Tensor, why: str) -> None:
    count = int(bad.sum())
    if count:
        first = [int(i) for i in bad.nonzero()[0]]
        raise ValueError(f"{name} {why} at {count} of {tensor.numel()} places, first at {first}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollouts:
    """Sampled responses. `mask` is True exactly for tokens that the policy sampled (not padding, not tool output)."""

    prompts: tuple[tuple[int, ...], ...]
    tokens: Int[Tensor, "seq tok"]
    mask: Bool[Tensor, "seq tok"]
    group: Int[Tensor, " seq"]
    behavior_logp: Float[Tensor, "seq tok"]
    """Log-prob under the sampler; a token with NaN is left out of the loss."""
    finished: Bool[Tensor, " seq"]
    """False where the response was cut at the length limit."""

    def __post_init__(self) -> None:
        if self.tokens.dim() != 2:
            raise ValueError(f"tokens is {_size(self.tokens)}; it must be responses x tokens")
        rows = self.tokens.shape[0]
        if len(self.prompts) != rows:
            raise ValueError(f"prompts holds {len(self.prompts)} prompts but tokens holds {rows} responses; give one prompt per response")
        _same_shape("mask", self.mask, "tokens", self.tokens)
        _same_shape("behavior_logp", self.behavior_logp, "tokens", self.tokens)
        _one_per_row("group", self.group, rows)
        _one_per_row("finished", self.finished, rows)
        if self.mask.dtype != torch.bool:
            raise ValueError(f"mask has dtype {self.mask.dtype}; it must be bool")
        _none_where("behavior_logp", self.behavior_logp, self.behavior_logp.isinf() & self.mask, "is infinite")
        _none_where("behavior_logp", self.behavior_logp, (self.behavior_logp > 1e-3) & self.mask, "is above 0, which no log-prob can be,")

    @property
    def loss_mask(self) -> Bool[Tensor, "seq tok"]:
        return self.mask & ~self.behavior_logp.isnan()

    def select(self, rows: Tensor) -> "Rollouts":
        return Rollouts(
            prompts=tuple(self.prompts[int(row)] for row in rows),
            tokens=self.tokens[rows],
            mask=self.mask[rows],
            group=self.group[rows],
            behavior_logp=self.behavior_logp[rows],
            finished=self.finished[rows],
        )


@runtime_checkable
class FeatureSource(Protocol):
    """Packed features in chunks. `runs` cover all tokens in order; `chunks` brings those at `wanted` (all) to the device."""

    @property
    def width(self) -> int: ...

    @property
    def runs(self) -> Sequence[slice]: ...

    def __len__(self) -> int: ...

    def chunks(self, wanted: Sequence[int] | None = None) -> Iterator[tuple[int, Float[Tensor, "tok hid"]]]:
        """Number and features of each chunk; what was brought may be overwritten once the next is asked for."""
        ...


class TokenScores(NamedTuple):
    """What one scoring pass computes for every response token; 0 outside the mask."""

    logp: Float[Tensor, "seq tok"]
    entropy: Float[Tensor, "seq tok"]
    hidden: Float[Tensor, "seq tok hid"] | None
    """The inputs of the LM head."""
    features: FeatureSource | None = None
    """The same for the tokens of the loss alone, from a pass without padding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """Rollouts with the verifier's `score`, and the `reward` after shaping."""

    rollouts: Rollouts
    score: Float[Tensor, " seq"]
    reward: Float[Tensor, " seq"]

    def __post_init__(self) -> None:
        rows = len(self.rollouts.prompts)
        for name, value in (("score", self.score), ("reward", self.reward)):
            _one_per_row(name, value, rows)
            _none_where(name, value, value.isinf(), "is infinite")
        _none_where("reward", self.reward, self.reward.isnan() != self.score.isnan(), "and score disagree on what could be graded")

    @property
    def graded(self) -> Bool[Tensor, " seq"]:
        return ~self.score.isnan()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Credited:
    """Scored rollouts with the credit of every token, a signed number.

    `coefficient` is None for methods that compute credit directly; otherwise credit = coefficient x advantage.
    """

    scored: Scored
    old_logp: Float[Tensor, "seq tok"]
    entropy: Float[Tensor, "seq tok"]
    advantage: Float[Tensor, " seq"]
    coefficient: Float[Tensor, "seq tok"] | None
    credit: Float[Tensor, "seq tok"]
    reference_logp: Float[Tensor, "seq tok"] | None = None
    correction: Float[Tensor, "seq tok"] | None = None
    """Weight of each token's loss where the sampler's log-probs differ from the trainer's."""

    def __post_init__(self) -> None:
        mask = self.scored.rollouts.mask
        _one_per_row("advantage", self.advantage, mask.shape[0])
        _none_where("advantage", self.advantage, ~self.advantage.isfinite(), "is not finite")
        named = {"old_logp": self.old_logp, "entropy": self.entropy, "credit": self.credit}
        named |= {} if self.coefficient is None else {"coefficient": self.coefficient}
        named |= {} if self.reference_logp is None else {"reference_logp": self.reference_logp}
        named |= {} if self.correction is None else {"correction": self.correction}
        for name, value in named.items():
            _same_shape(name, value, "mask", mask)
            _none_where(name, value, ~value.isfinite() & mask, "is not finite")
        _none_where("credit", self.credit, (self.credit != 0) & ~mask, "lies outside the mask")
        if self.coefficient is not None:
            gap = (self.credit - self.coefficient * self.advantage[:, None]).abs()
            wrong = (gap > 1e-4 * (1 + self.credit.abs())) & mask
            _none_where("credit", self.credit, wrong, "is not coefficient x advantage")
        ungraded = ~self.scored.graded
        _none_where("credit", self.credit, (self.credit != 0) & ungraded[:, None], "is set on a response that could not be graded")

    @property
    def rollouts(self) -> Rollouts:
        return self.scored.rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One optimizer step: the rows of each micro-batch, and the denominator of every token's loss."""

    micro_batches: tuple[tuple[int, ...], ...]
    denominator: float
    prompts: int
    """Distinct prompts in this step."""
    tokens: int
    credit_scale: tuple[float, ...] | None = None
    """Factor on the credit of each row, in the order of `rows`; None where all are 1."""

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(row for micro in self.micro_batches for row in micro)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Which rows form which optimizer step and micro-batch. Data: logged, hashed, replayed."""

    kind: str
    seed: int
    rows: int
    steps: tuple[PlannedStep, ...]

    def __post_init__(self) -> None:
        planned = [row for step in self.steps for row in step.rows]
        if len(set(planned)) != len(planned):
            raise ValueError(f"plan places {len(planned)} rows but only {len(set(planned))} distinct ones; a row may appear once")
        outside = [row for row in planned if not 0 <= row < self.rows]
        if outside:
            raise ValueError(f"plan names row {outside[0]} but there are {self.rows} rows")
        for index, step in enumerate(self.steps):
            if not 0 < step.denominator < float("inf"):
                raise ValueError(f"optimizer step {index} has denominator {step.denominator}; it must be above 0 and finite")
            if step.credit_scale is not None and len(step.credit_scale) != len(step.rows):
                raise ValueError(
                    f"optimizer step {index} has {len(step.rows)} rows but {len(step.credit_scale)} credit scales; give one each"
                )

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "seed": self.seed,
            "rows": self.rows,
            "steps": [
                {
                    "micro_batches": [list(micro) for micro in step.micro_batches],
                    "denominator": step.denominator,
                    "prompts": step.prompts,
                    "tokens": step.tokens,
                    **({} if step.credit_scale is None else {"credit_scale": list(step.credit_scale)}),
                }
                for step in self.steps
            ],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "StepPlan":
        """The plan behind `to_json`'s fields."""
        steps = tuple(
            PlannedStep(
                micro_batches=tuple(tuple(micro) for micro in step["micro_batches"]),
                denominator=step["denominator"],
                prompts=step["prompts"],
                tokens=step["tokens"],
                credit_scale=None if "credit_scale" not in step else tuple(step["credit_scale"]),
            )
            for step in fields["steps"]
        )
        return cls(kind=fields["kind"], seed=fields["seed"], rows=fields["rows"], steps=steps)

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Results of the optimizer steps of one plan: one entry per optimizer step in each tuple."""

    loss: tuple[float, ...]
    gradient_norm: tuple[float, ...]
    silenced_share: tuple[float, ...]
    """Share of credited tokens whose gradient the objective cut to zero by clipping; 0 with a KL term in the loss."""
    ratio_mean: tuple[float, ...]

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in ("loss", "gradient_norm", "silenced_share", "ratio_mean")}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"step results have lengths {lengths}; give one entry per optimizer step in each")


TableRow = Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a diagnosis: a note, named numbers and small tables. NaN means unknown."""

    name: str
    note: str
    numbers: Mapping[str, float]
    tables: Mapping[str, tuple[TableRow, ...]]

    def __post_init__(self) -> None:
        if not self.note.strip():
            raise ValueError(f"finding {self.name!r} has no note; describe what was found")

    def to_json(self) -> dict[str, Any]:
        """NaN becomes null, because JSON has no NaN."""

        def nan_to_none(value: float | int | str | None) -> float | int | str | None:
            return None if isinstance(value, float) and value != value else value

        return {
            "name": self.name,
            "note": self.note,
            "numbers": {key: nan_to_none(value) for key, value in self.numbers.items()},
            "tables": {
                key: [{column: nan_to_none(value) for column, value in row.items()} for row in rows] for key, rows in self.tables.items()
            },
        }
