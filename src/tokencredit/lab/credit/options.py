"""The sizes of one benchmark, and the refusal of those that measure nothing."""

from typing import NamedTuple

from tokencredit.errors import ConfigError


class CreditOrder(NamedTuple):
    prompts: int = 32
    """Of the batch whose truth is measured."""
    continuations: int = 128
    """Behind the value of each of its prefixes."""
    decisive: float = 0.1
    """A token whose |A*| is above this is decisive."""
    reference: int = 32768
    """Rollouts of the reference gradient; 0 leaves gradients out."""
    batches: int = 32
    batch_prompts: int = 16
    extra: float = 2.0
    """Rollouts of its own per rollout of a batch that a recipe may take in the small batches."""
    resamples: int = 1000
    """Of prompts, for intervals."""
    examples: int = 2
    """Responses shown of each recipe's credit; 0 shows none."""


USUAL = CreditOrder()
QUICK = CreditOrder(prompts=8, continuations=32, reference=1024, batches=6, batch_prompts=6, resamples=200)
"""To see that all of it runs; the numbers are too noisy to mean anything."""


def check_order(order: CreditOrder, group_size: int) -> None:
    least = {"prompts": 2, "continuations": 2, "batches": 2, "batch_prompts": 1, "resamples": 1, "examples": 0}
    for name, smallest in least.items():
        if getattr(order, name) < smallest:
            raise ConfigError(f"{name.replace('_', '-')} is {getattr(order, name)}; give at least {smallest}")
    if not 0 < order.decisive < 1:
        raise ConfigError(f"decisive is {order.decisive:g}; it must lie between 0 and 1")
    if not order.extra >= 0:
        raise ConfigError(f"extra is {order.extra:g}; give 0 or more")
    if group_size < 2:
        raise ConfigError(f"sampling.group_size is {group_size}, and methods that compare siblings are measured; give at least 2")
    if order.reference and order.reference < 4 * group_size:
        raise ConfigError(
            f"reference is {order.reference}; two halves of two groups take {4 * group_size} rollouts, or give 0 to leave gradients out"
        )
    if order.reference < 0:
        raise ConfigError(f"reference is {order.reference}; give 0 or more")
