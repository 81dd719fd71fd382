"""Which recipes every engine must treat alike, and how each is run.

KL-Cov is not among them: its penalty |logp - old_logp| has a kink at ratio 1, where the first optimizer step of a batch stands,
and which side of it a token falls on is a matter of rounding.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Case(NamedTuple):
    recipe: Mapping[str, Any]
    """A named recipe with differences."""
    optimizer_steps: int = 4
    iterations: int = 1
    """How often the plan is gone through."""
    temperature: float = 1.0
    learning_rate: float = 0.01
    """Of plain SGD: large enough that ratios leave the clip, small enough that rounding is not blown up on the way."""
    groups: int = 8
    tools: bool = False
    """Responses hold tokens that the policy did not write."""
    other_sampler: bool = False
    """Responses come with the log-probs of a sampler that differs from the policy."""
    without_cut: bool = False
    """Responses that did not end are left out of the loss, which the engine is told and not the recipe."""


WHOLE_GROUPS = {"batching": {"type": "query-preserved"}}

CASES: dict[str, Case] = {
    "grpo": Case({"recipe": "grpo"}),
    "dapo": Case({"recipe": "dapo"}),
    "dr-grpo": Case({"recipe": "dr-grpo"}),
    "delta": Case({"recipe": "delta"}),
    "cancellation": Case({"recipe": "cancellation"}, learning_rate=0.02),
    "ntf": Case({"recipe": "ntf"}, learning_rate=0.005),
    "fade": Case({"recipe": "fade"}),
    "dfpo": Case({"recipe": "dfpo"}),
    "gspo": Case({"recipe": "gspo"}),
    "cispo": Case({"recipe": "cispo"}),
    "gmpo": Case({"recipe": "gmpo"}),
    "clip-cov": Case({"recipe": "clip-cov"}),
    "fipo": Case({"recipe": "fipo"}),
    "forking-tokens": Case({"recipe": "forking-tokens"}),
    "ktae": Case({"recipe": "ktae"}),
    "delta, whole groups": Case({"recipe": "delta", **WHOLE_GROUPS}),
    "delta, seven groups of four": Case({"recipe": "delta", **WHOLE_GROUPS}, groups=7, optimizer_steps=7),
    "delta, head gradients, temperature 0.7": Case({"recipe": "delta", "credit": {"proxy": "head"}}, temperature=0.7, learning_rate=0.003),
    "delta per group, first batch's scale": Case({"recipe": "delta", "credit": {"scope": "group", "temperature": "first-batch"}}),
    "delta with gspo": Case({"recipe": "delta", "objective": {"type": "gspo"}}),
    "delta, on policy": Case({"recipe": "delta"}, optimizer_steps=1),
    "delta with tools": Case({"recipe": "delta"}, tools=True),
    "dapo without cut responses": Case({"recipe": "dapo"}, without_cut=True),
    "dapo, two passes": Case({"recipe": "dapo"}, iterations=2),
    "grpo, on policy": Case({"recipe": "grpo"}, optimizer_steps=1),
    "grpo, balanced by weight": Case({"recipe": "grpo", "batching": {"type": "reward-balanced", "method": "reweight"}}),
    "grpo, balanced by leaving out": Case({"recipe": "grpo", "batching": {"type": "reward-balanced", "method": "subsample"}}),
    "grpo, stratified": Case({"recipe": "grpo", "batching": {"type": "stratified"}}),
    "grpo, KL in the loss": Case({"recipe": "grpo", "kl": {"beta": 0.02}}, learning_rate=0.005),
    "dr-grpo, KL in the reward": Case({"recipe": "dr-grpo", "kl": {"beta": 0.02, "place": "reward"}}),
}

CLIPPED = frozenset(
    {"grpo", "dapo", "dr-grpo", "delta", "cancellation", "ntf", "fade", "gspo", "gmpo", "fipo", "forking-tokens", "ktae"}
    | {"delta, whole groups", "delta with gspo", "grpo, balanced by weight", "grpo, stratified", "dapo, two passes"}
)
"""Cases in which the objective silences credited tokens, so that clips are compared too."""
