"""Log-probs, entropies and hidden states of tokens, recorded from TRL's own forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokencredit.config import Recipe
from tokencredit.errors import ConfigError
from tokencredit.pipeline.build import needed_evidence


class ScoringPass(NamedTuple):
    logp: Tensor
    entropy: Tensor
    hidden: Tensor | None
    """Input of the LM head where each token is predicted."""


class PassRecorder:
    """Keeps the outputs of the policy's passes over one batch."""

    def __init__(self, *, keep_hidden: bool) -> None:
        self._keep_hidden = keep_hidden
        self._hidden: list[Tensor] = []
        self._found: list[ScoringPass] = []

    @contextmanager
    def watching(self, trainer: Any) -> Iterator[None]:
        self._hidden.clear()
        if not self._keep_hidden:
            yield
            return
        # TRL reads the head's weight and never calls the head, so the hook is on the backbone.
        handle = causal_lm(trainer).base_model.register_forward_hook(lambda _, __, output: self._hidden.append(output.last_hidden_state))
        try:
            yield
        finally:
            handle.remove()

    def keep(self, logp: Tensor, entropy: Tensor) -> None:
        width = logp.shape[1]
        hidden = torch.cat([states[:, :-1][:, -width:] for states in self._hidden]) if self._hidden else None
        self._hidden.clear()
        if self._found:  # The reference may be the policy without its adapter: only the first pass is the policy's.
            hidden = None
        self._found.append(ScoringPass(logp, entropy, hidden))

    def forget(self) -> None:
        self._found.clear()

    @property
    def first(self) -> ScoringPass:
        return self._found[0]

    @staticmethod
    def needed_by(recipe: Recipe) -> bool:
        """Whether anything before the loss reads what a pass finds; exactly on policy the loss itself needs no old log-probs."""
        in_reward = recipe.kl.beta > 0 and recipe.kl.place == "reward"
        return bool(needed_evidence(recipe)) or recipe.correction.enabled or in_reward


def causal_lm(trainer: Any) -> Any:
    """The transformers model inside its wrappers."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def head_of(trainer: Any) -> Tensor:
    """The LM-head weight, for proxies that need more than the hidden state."""
    weight = causal_lm(trainer).get_output_embeddings().weight
    weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    if weight.dim() != 2 or not weight.numel():
        raise ConfigError("credit.proxy needs the LM-head weight, which is sharded here; use credit.proxy 'row'")
    return weight.detach()


def end_tokens(trainer: Any) -> tuple[int, ...]:
    return tuple(trainer.eos_token_ids)
