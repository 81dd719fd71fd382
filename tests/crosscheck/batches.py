"""Random batches in float64: uneven lengths and groups, dead groups, any rewards, ratios on either side of every clip."""

from typing import NamedTuple

import torch
from torch import Tensor

SEEDS = range(12)


class Batch(NamedTuple):
    reward: Tensor
    group: Tensor
    mask: Tensor
    advantage: Tensor
    """One number per response, some of them 0."""
    credit: Tensor
    """Another number for every token, signs mixed within a response."""
    logp: Tensor
    old_logp: Tensor
    sampler_logp: Tensor
    reference_logp: Tensor

    @property
    def length(self) -> Tensor:
        return self.mask.sum(-1)

    @property
    def uniform(self) -> Tensor:
        """The advantage on every token."""
        return self.advantage[:, None].expand(self.mask.shape).clone()


def _rewards(group: Tensor, generator: torch.Generator) -> Tensor:
    """Groups in turn: any numbers, right or wrong, all the same fraction, eighths, all 0."""
    size = group.shape
    kinds = torch.stack(
        [
            torch.randn(size, generator=generator, dtype=torch.float64) - 0.5,
            torch.randint(0, 2, size, generator=generator).double(),
            torch.full(size, 0.3, dtype=torch.float64),
            torch.randint(-8, 9, size, generator=generator).double() / 8,
            torch.zeros(size, dtype=torch.float64),
        ]
    )
    return kinds.gather(0, (group % len(kinds))[None])[0]


def random_batch(seed: int, *, group_size: int | None = None, smallest_group: int = 2) -> Batch:
    """`group_size` None gives every prompt its own number of responses and mixes the rows.

    Masks have holes inside responses, and one response has no token at all.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def whole(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator)

    prompts = 6
    sizes = whole(smallest_group, 5, prompts) if group_size is None else torch.full((prompts,), group_size)
    group = torch.arange(prompts).repeat_interleave(sizes)
    rows, width = len(group), int(whole(5, 9))
    length = whole(1, width, rows)
    length[0] = width
    mask = torch.arange(width) < length[:, None]
    mask &= (torch.rand(mask.shape, generator=generator) > 0.15) | (torch.arange(width) == 0)
    mask[0, -1] = True
    mask[1] = False
    order = torch.randperm(rows, generator=generator) if group_size is None else torch.arange(rows)
    old_logp = -normal(rows, width).abs() - 0.01
    # Tokens leave a clip of 0.2 on both sides and now and then a dual clip of 3; responses drift as a whole.
    drift = 0.3 * normal(rows, width) + 0.15 * normal(rows, 1) + 1.5 * (normal(rows, width) > 1.5)
    advantage = normal(rows)
    advantage[::5] = 0
    return Batch(
        reward=_rewards(group, generator)[order],
        group=group[order],
        mask=mask,
        advantage=advantage,
        credit=normal(rows, width),
        logp=old_logp + drift,
        old_logp=old_logp,
        sampler_logp=old_logp + 0.5 * normal(rows, width),
        reference_logp=old_logp + 0.4 * normal(rows, width),
    )
