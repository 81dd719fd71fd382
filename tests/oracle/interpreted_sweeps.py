"""Run by `test_delta_kernels` in a process of its own, under Triton's interpreter: how far kernels in a file are from the plain twins."""

import importlib.util
import json
import sys

import torch

from tokencredit.kernels.delta import reference

SHAPES = ((20, 40, 4, 16), (9, 270, 3, 64))
"""Rows of features, their width, tiles, slots of a tile: widths that no block divides, more slots than rows."""


def gaps(path: str, only: str | None) -> dict[str, float]:
    """Of every sweep, or of one."""
    spec = importlib.util.spec_from_file_location("sweeps_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    sweeps = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sweeps)
    sweeps.SPLITS, sweeps.LANES = 2, 8
    draw = torch.Generator().manual_seed(0)
    worst: dict[str, float] = {}
    for rows, width, tiles, slots in SHAPES:
        # The first columns of a wider array, whose rest nobody may read; nor row 0, which no slot names.
        features = torch.cat([torch.randn(rows, width, generator=draw), torch.full((rows, 3), torch.nan)], 1)[:, :width]
        features[0] = torch.nan
        place = torch.randint(-4, rows, (tiles, slots), generator=draw).to(torch.int32)
        place = place.where(place > 0, -1)
        weight = torch.randn(tiles, slots, generator=draw).where(place >= 0, 0.0)
        scope = torch.randint(0, 3, (tiles,), generator=draw)
        direction = torch.randn(3, width, generator=draw)
        sums = reference.tile_sums(features, place, weight)
        few, many = torch.tensor([0, 1, 1, tiles - 1]), torch.arange(9).clamp(max=tiles)
        unwanted = weight.where(place != 1, 0.0)
        features_without = features.clone()
        features_without[1] = torch.nan
        pairs = {
            "tile_sums": ((features, place, weight), sums),
            "tile_sums of unweighted rows": ((features_without, place, unwanted), reference.tile_sums(features, place, unwanted)),
            "project": ((features, place, scope, direction), reference.project(features, place, scope, direction)),
            "squared_norms": ((features, place), reference.squared_norms(features, place)),
            "scope_sums": ((sums, few), reference.scope_sums(sums, few)),
            "scope_sums of float32": ((sums.float(), few), reference.scope_sums(sums.float(), few)),
            "scope_sums of many": ((sums, many), reference.scope_sums(sums, many)),
        }
        for name, (given, expected) in pairs.items():
            if only not in (None, name):
                continue
            gap = (getattr(sweeps, name.split()[0])(*given) - expected).abs().max() / expected.abs().max()
            worst[name] = max(worst.get(name, 0.0), float(gap.nan_to_num(nan=9.0)))
    return worst


if __name__ == "__main__":
    print(json.dumps({path: gaps(path, only) for path, only in json.loads(sys.argv[1]).items()}))
