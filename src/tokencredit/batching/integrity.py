"""Do the optimizer steps of a batch keep groups whole?"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def splitting_share(steps: Iterable[Sequence[int]], group: Sequence[int] | Tensor) -> float:
    """Share of the optimizer steps (rows of each) that hold a part of a group whose other part is in another step."""
    names = group.tolist() if isinstance(group, torch.Tensor) else list(group)
    groups_of = [{names[row] for row in rows} for rows in steps]
    met: dict[int, int] = {}
    for groups in groups_of:
        for name in groups:
            met[name] = met.get(name, 0) + 1
    splitting = sum(any(met[name] > 1 for name in groups) for groups in groups_of)
    return splitting / len(groups_of) if groups_of else 0.0
