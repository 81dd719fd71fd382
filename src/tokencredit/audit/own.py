"""Somebody's own objective by import path: `package.module:function`."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from tokencredit.errors import ConfigError
from tokencredit.objective import Objective, TokenInputs


def load_objective(path: str) -> Objective:
    """An `Objective`, or a function of TokenInputs that returns the loss: one per token, or a single number.

    A single number must be divided as the function means it: neither weights nor a denominator are applied to it. The audit
    probes a function through `inputs.credit`; one that reads `inputs.advantage` instead is not seen through.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"objective is {path!r}; write package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except Exception as problem:
        raise ConfigError(f"objective {path!r}: module {module_name!r} cannot be imported: {problem}") from None
    found = getattr(module, name, None)
    if isinstance(found, Objective):
        return found
    if not callable(found):
        raise ConfigError(f"objective {path!r}: {module_name!r} has no function {name!r}")
    return Objective(token_loss=_checked(path, found))


def _checked(path: str, function: Callable[[TokenInputs], Any]) -> Callable[[TokenInputs, Any], Tensor]:
    def token_loss(inputs: TokenInputs, statistic: Any) -> Tensor:
        try:
            loss = function(inputs)
        except Exception as problem:
            raise ConfigError(f"objective {path!r} failed: {type(problem).__name__}: {problem}") from None
        if not isinstance(loss, Tensor) or (loss.dim() and loss.shape != inputs.mask.shape):
            returned = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(
                f"objective {path!r} returned {returned}; it must return a tensor of shape {tuple(inputs.mask.shape)} or a single number"
            )
        if not loss.requires_grad:
            raise ConfigError(f"objective {path!r} returned a loss that does not depend on inputs.logp")
        return loss

    return token_loss
