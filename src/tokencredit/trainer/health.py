"""The health of a run: refused batches, batches without credit, and warnings about entropy, length and cut responses."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tokencredit.config.train import Guard

ENTROPY, LENGTH, CUT = "entropy", "completions/mean_length", "completions/clipped_ratio"


@dataclass(slots=True)
class RunHealth:
    refused: int = 0
    """Training steps in a row whose update was refused."""
    silent: int = 0
    """Training steps in a row without any credit."""
    first: dict[str, float] = field(default_factory=dict)
    """Entropy and length of the first batch that was trained on."""
    warned: list[str] = field(default_factory=list)
    """Conditions that hold now; each gives one warning when it begins to hold."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "RunHealth":
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def count(self, *, refused: bool, silent: bool) -> None:
        self.refused = self.refused + 1 if refused else 0
        self.silent = self.silent + 1 if silent else 0

    def warnings(self, row: Mapping[str, float], guard: Guard) -> list[str]:
        """Messages for conditions that begin to hold with this row of metrics."""
        if ENTROPY not in row:
            return []
        for name in (ENTROPY, LENGTH):
            self.first.setdefault(name, row[name])
        entropy, length, cut = row[ENTROPY], row[LENGTH], row[CUT]
        holding = {
            "entropy": (
                entropy < guard.entropy_share * self.first[ENTROPY],
                f"entropy has collapsed: {entropy:.4f} per token, {self.first[ENTROPY]:.4f} at the first step (guard.entropy_share)",
            ),
            "length": (
                guard.length_factor > 0 and length > guard.length_factor * self.first[LENGTH],
                f"responses run away: {length:.1f} tokens on average, {self.first[LENGTH]:.1f} at the first step (guard.length_factor)",
            ),
            "cut": (
                cut > guard.cut_share,
                f"{100 * cut:.0f} % of responses are cut at the length limit; they cannot end as they would (guard.cut_share)",
            ),
        }
        new = [message for name, (holds, message) in holding.items() if holds and name not in self.warned]
        self.warned = [name for name, (holds, _) in holding.items() if holds]
        return new


def describe_silence(score: float, steps: int) -> str:
    reasons = {1.0: "every response is right: there is nothing left to learn here", 0.0: "every response is wrong: the task is too hard"}
    reason = reasons.get(score, "no group has both better and worse responses")
    return f"no token has received any credit for {steps} training steps in a row; {reason} (guard.silent_steps)"


def describe_ungraded(reasons: Mapping[str, int], share: float) -> str:
    often = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    listed = "; ".join(f"{reason} ({count})" for reason, count in often[:3]) + ("; …" if len(often) > 3 else "")
    return f"{100 * share:.1f} % of the responses could not be graded: {listed}"
