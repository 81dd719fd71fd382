"""The base of every config class: a frozen record whose fields name the origin of their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from tokencredit.types import Evidence
else:
    # The command line reads annotations at run time, when types would load torch.
    Evidence = str

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
PositiveShare = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a default comes from; `tokencredit recipes NAME` shows it."""

    said: str


@dataclass(frozen=True, slots=True)
class OnlyWhen:
    """A field that is read only for certain values of another field. Setting it otherwise has no effect and is refused."""

    field: str
    values: tuple[str, ...]


PAPER = Origin("paper")
PAPER_AND_CODE = Origin("paper and released code")
NOTE = Origin("a published note on the paper")
CODE = Origin("public code")
READING = Origin("reading: not published")
OURS = Origin("ours")


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _none_in_words(cls, fields: Any) -> Any:
        """TOML has no null: "none" unsets an optional field."""
        if not isinstance(fields, dict):
            return fields
        unset = {name for name, field in cls.model_fields.items() if field.default is None}
        return {name: None if name in unset and value == "none" else value for name, value in fields.items()}

    @model_validator(mode="after")
    def _no_number_goes_unread(self) -> Self:
        for name, info in type(self).model_fields.items():
            for rule in info.metadata:
                if isinstance(rule, OnlyWhen) and getattr(self, name) != info.default and getattr(self, rule.field) not in rule.values:
                    chosen, needed = getattr(self, rule.field), " or ".join(repr(value) for value in rule.values)
                    raise ValueError(f"{name} is {getattr(self, name)!r} but is read only when {rule.field} is {needed}; it is {chosen!r}")
        return self


class MethodConfig(Frozen):
    """One method at one stage: its type, its numbers, its formula, its properties, and what to know before using it.

    Engines, pairing rules, refusals and the tables of the docs read these properties; no other place repeats them. A property that is a
    text completes the sentence "credit 'delta' ...", and every refusal quotes it.
    """

    stage: ClassVar[str]
    formula: ClassVar[str]
    caveats: ClassVar[tuple[str, ...]] = ()
    sampling_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that control how evidence is sampled. The engine reads them; the method's function does not."""
    needs: ClassVar[Mapping[Evidence, str]] = {}
    """Evidence that the method reads beyond tokens, rewards and groups -> what the method does with it."""
    needs_model: ClassVar[str | None] = None
    """What the method reads that only a model's folder holds."""
    reads_score: ClassVar[str | None] = None
    """How the method uses the verifier's score instead of the shaped reward."""

    @property
    def label(self) -> str:
        """Stage and type, as in "credit 'delta'"."""
        return f"{self.stage} {type(self).model_fields['type'].default!r}"

    @property
    def compares_siblings(self) -> str | None:
        """How the method compares responses to one prompt; None: a prompt may have a single response."""
        return None

    @property
    def needs_negative_side(self) -> str | None:
        """What the method lacks where no advantage is negative."""
        return None

    @property
    def keeps_state(self) -> str | None:
        """What the method remembers from step to step."""
        return None


REVISIONS: Mapping[Evidence, str] = {"revisions": "asks the policy to revise failed responses"}


def origin_of(choice: type[Frozen], field: str) -> str:
    """The origin of a field's default, as text."""
    return next((part.said for part in choice.model_fields[field].metadata if isinstance(part, Origin)), OURS.said)


def as_kwargs(choice: Frozen, *without: str) -> dict[str, Any]:
    """The fields of a method as keyword arguments of its function."""
    return choice.model_dump(exclude={"type", *without})
