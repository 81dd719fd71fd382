"""Synthetic groups that share a prefix, under one condition each; an audit needs no model.

Siblings share their first tokens (same context, same token, hence the same log-prob under any policy) and then part.
Whatever a shared token's credit, its siblings' updates should cancel there: it did not decide the outcome.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokencredit.seeds import derive_seed
from tokencredit.types import Rollouts

SHARED = 4
"""Tokens each group has in common."""
LENGTH = 12
LENGTH_LIMIT = 4 * LENGTH
"""Far above any length, so that a penalty near the limit plays no part."""
GROUP_SIZE = 4
SPLIT_STEPS = 4
"""Optimizer steps a batch is cut into in the condition that cuts it."""
OUTCOMES = ((1, 0, 0, 0), (1, 1, 0, 0), (0, 1, 1, 1), (0, 0, 1, 0), (0, 1, 0, 1), (1, 0, 1, 1), (0, 0, 0, 1), (1, 1, 0, 1))
"""Right and wrong answers of each group: every mixed share, in no order."""
VOCABULARY = 64
HIDDEN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    score: Tensor
    group: Tensor
    tokens: Tensor
    mask: Tensor
    shared: Tensor
    behavior_logp: Tensor
    """Of the sampler, where a recipe corrects for its difference from the trainer."""
    old_logp: Tensor
    logp: Tensor
    entropy: Tensor
    hidden: Tensor
    """What lets a credit method separate right from wrong responses; zero where it must not."""
    repaired: Tensor
    edited: Tensor
    prefix_value: Tensor
    greedy_score: Tensor
    seed: int
    optimizer_steps: int = 1

    def rollouts(self) -> Rollouts:
        """Without prompts, which no stage reads; every response ended by itself."""
        rows = len(self.score)
        return Rollouts(
            prompts=((),) * rows,
            tokens=self.tokens,
            mask=self.mask,
            group=self.group,
            behavior_logp=self.behavior_logp,
            finished=torch.ones(rows, dtype=torch.bool),
        )


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, f"audit-{purpose}"))


def _by_position(values: Tensor, groups: int) -> Tensor:
    """[group, shared position] -> [row, shared position]: the same for every sibling."""
    return values.repeat_interleave(GROUP_SIZE, 0)[: groups * GROUP_SIZE]


def plain_scene(outcomes: tuple[tuple[int, ...], ...] = OUTCOMES, *, seed: int = 0) -> Scene:
    """On policy, equal lengths, one optimizer step, right and wrong responses differ in the outcome only."""
    generator = _generator(seed, "scene")

    def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)

    groups, rows = len(outcomes), len(outcomes) * GROUP_SIZE
    score = torch.tensor(outcomes, dtype=torch.float64).flatten()
    mask = torch.ones(rows, LENGTH, dtype=torch.bool)
    shared = mask.clone()
    shared[:, SHARED:] = False
    # Every group has one shared token the policy was unsure of; the rest of what siblings differ in comes after.
    unsure = torch.tensor([False, True, False, False]).expand(groups, SHARED)
    old_logp = uniform(rows, LENGTH, low=-1.0, high=-0.2)
    old_logp[:, :SHARED] = _by_position(torch.where(unsure, uniform(groups, SHARED, low=-2.0, high=-1.5), -0.1), groups)
    entropy = uniform(rows, LENGTH, low=0.5, high=1.5)
    entropy[:, :SHARED] = _by_position(torch.where(unsure, uniform(groups, SHARED, low=2.0, high=2.5), 0.1), groups)
    tokens = torch.randint(VOCABULARY // 2, VOCABULARY, (rows, LENGTH), generator=generator)
    tokens[:, :SHARED] = _by_position(torch.arange(groups * SHARED).view(groups, SHARED) % (VOCABULARY // 2), groups)
    failed = score == 0
    repaired = torch.where(failed, uniform(rows), 0.0)
    edited = torch.where((failed & (repaired > 0.5))[:, None] & shared, False, mask)
    # A prefix that all siblings share is worth what the prompt is worth.
    prefix_value = torch.full((rows, LENGTH), torch.nan, dtype=torch.float64)
    prefix_value[:, SHARED] = score.view(groups, GROUP_SIZE).mean(1).repeat_interleave(GROUP_SIZE)
    return Scene(
        score=score,
        group=torch.arange(groups).repeat_interleave(GROUP_SIZE),
        tokens=tokens,
        mask=mask,
        shared=shared,
        behavior_logp=old_logp,
        old_logp=old_logp,
        logp=old_logp,
        entropy=entropy,
        hidden=torch.zeros(rows, LENGTH, HIDDEN, dtype=torch.float64),
        repaired=repaired,
        edited=edited,
        prefix_value=prefix_value,
        greedy_score=(torch.arange(groups) % 2).double().repeat_interleave(GROUP_SIZE),
        seed=seed,
    )


def off_policy(*, seed: int = 0) -> Scene:
    """Every log-prob has moved by up to 0.1, shared tokens by the same amount in all siblings; no token ratio leaves 0.9 to 1.11.

    The sampler's log-probs differ from the trainer's as much, for recipes that correct for it.
    """
    scene = plain_scene(seed=seed)
    return replace(
        scene, logp=scene.old_logp + _drift(scene, "drift"), behavior_logp=(scene.old_logp + _drift(scene, "mismatch")).clamp(max=0)
    )


def _drift(scene: Scene, purpose: str) -> Tensor:
    drift = 0.2 * torch.rand(scene.mask.shape, generator=_generator(scene.seed, purpose), dtype=torch.float64) - 0.1
    drift[:, :SHARED] = drift[::GROUP_SIZE, :SHARED].repeat_interleave(GROUP_SIZE, 0)
    return drift


def uneven_lengths(*, seed: int = 0) -> Scene:
    """On policy; siblings are 5 to 12 tokens long."""
    scene = plain_scene(seed=seed)
    # Rotated from group to group, so that neither side is the longer one throughout.
    row = torch.arange(len(scene.score))
    lengths = torch.tensor([12, 7, 9, 5])[(row + row // GROUP_SIZE) % 4]
    mask = torch.arange(LENGTH) < lengths[:, None]
    return replace(scene, mask=mask, shared=scene.shared & mask, edited=scene.edited & mask)


def clipping(*, seed: int = 0) -> Scene:
    """Of the shared tokens one ratio has risen to e^0.6 and one fallen to e^-0.3; nothing else has moved."""
    scene = plain_scene(seed=seed)
    drift = torch.zeros_like(scene.logp)
    drift[:, 1], drift[:, 2] = 0.6, -0.3
    return replace(scene, logp=scene.old_logp + drift)


def split_groups(*, seed: int = 0) -> Scene:
    """On policy; the batch is cut into four optimizer steps as the recipe's batching cuts it."""
    return replace(plain_scene(seed=seed), optimizer_steps=SPLIT_STEPS)


def dead_groups(*, seed: int = 0) -> Scene:
    """On policy; two groups are all right and one is all wrong."""
    return plain_scene((*OUTCOMES, (1, 1, 1, 1), (0, 0, 0, 0), (1, 1, 1, 1)), seed=seed)


def unequal_coefficients(*, seed: int = 0) -> Scene:
    """On policy; hidden states differ between right and wrong responses, so that credit can separate the sides."""
    scene = plain_scene(seed=seed)
    generator = _generator(seed, "hidden")
    hidden = torch.randn(*scene.mask.shape, HIDDEN, generator=generator, dtype=torch.float64)
    hidden[:, :SHARED] = hidden[::GROUP_SIZE, :SHARED].repeat_interleave(GROUP_SIZE, 0)
    direction = torch.randn(HIDDEN, generator=generator, dtype=torch.float64)
    hidden[:, SHARED:] += (2 * scene.score - 1)[:, None, None] * direction
    return replace(scene, hidden=hidden)


def _on_policy(*, seed: int = 0) -> Scene:
    """Ratios are 1, lengths equal, one optimizer step."""
    return plain_scene(seed=seed)


CONDITIONS: dict[str, Callable[..., Scene]] = {
    "on-policy": _on_policy,
    "off-policy": off_policy,
    "uneven lengths": uneven_lengths,
    "clipping": clipping,
    "split groups": split_groups,
    "dead groups": dead_groups,
    "unequal coefficients": unequal_coefficients,
}
