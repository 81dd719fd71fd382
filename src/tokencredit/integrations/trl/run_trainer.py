"""The adapter's trainer as `tokencredit train --engine trl` uses it."""

import math
from typing import Any

from tokencredit.errors import GuardError
from tokencredit.integrations.trl.planned import PlannedBatch
from tokencredit.integrations.trl.trainer import CreditGRPOTrainer
from tokencredit.policy.policy import Policy
from tokencredit.timing import Stopwatch


class RunTrainer(CreditGRPOTrainer):
    """Reads prompts as the local engine does, keeps the last batch for the record, and stops where a number broke down."""

    def __init__(self, *given: Any, policy: Policy, **named: Any) -> None:
        self.policy, self.stopwatch = policy, Stopwatch()
        self.batch: PlannedBatch | None = None
        super().__init__(*given, **named)

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.policy.ask(prompt) for prompt in prompts], None, {}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> PlannedBatch:
        with self.stopwatch.stage("rollouts"):
            batch = super()._generate_and_score_completions(inputs)
        self.batch = batch
        return batch

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """The run folder says what was trained, on what and how."""

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Weights that share their storage with others are saved once, which is no reason to warn."""
        shared = getattr(self.model, "_tied_weights_keys", None) or ()
        missing = [name for name in load_result.missing_keys if name not in shared]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _clip_grad_norm(self, model: Any) -> Any:
        norm: Any = super()._clip_grad_norm(model)
        if not math.isfinite(norm):
            raise GuardError(f"gradient norm is {float(norm)} in optimizer step {self.state.global_step + 1}; this step was not taken")
        return norm
