"""A process of its own in which Triton's kernels are interpreted: prints how far each result is from the definition."""

import json
import os
import sys
from collections.abc import Callable

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor
from triton.runtime import interpreter

from oracle.head_cases import RULES, Case, case, distance, expected
from tokencredit.kernels.lm_head import HeadRule, head_hidden_gradient, head_projection, head_statistics, head_weight_sum, triton_launch
from tokencredit.kernels.lm_head.triton_launch import Tile, Tiles

TILES = {"pointers": Tile(16, 32, 16, 4, 2), "descriptors": Tile(16, 32, 32, 4, 2, descriptors=True, flatten=True, described_out=True)}
SHAPES = ((35, 24, 77), (16, 32, 96))
BUFFER_BYTES = 6_000


def mend_interpreter() -> None:
    """Loop bounds are arrays of one number there, which newer numpy does not take for a number."""
    patch: Callable = interpreter._patch_lang_tensor

    def patched(tensor, scope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched


def distances(given: Case, rule: HeadRule) -> dict[str, float]:
    wanted = expected(given, rule)
    hidden, weight = given.hidden.clone().requires_grad_(), given.weight.clone().requires_grad_()
    knobs = {"backend": "triton", "buffer_bytes": BUFFER_BYTES}
    found = head_statistics(hidden, weight, given.tokens, rule, **knobs)
    by_hidden, by_weight = torch.autograd.grad((found.logp * given.share).sum(), (hidden, weight))
    result = {name: distance(getattr(found, name), getattr(wanted, name)) for name in found._fields}
    result |= {"by hidden": distance(by_hidden, wanted.by_hidden), "by weight": distance(by_weight, wanted.by_weight)}
    for sloped in (False, True) if rule.softcap else (False,):
        errors, wide = wanted.errors * wanted.slopes if sloped else wanted.errors, given.hidden.double()
        total: Tensor = head_weight_sum(*given[:4], rule, sloped=sloped, **knobs)
        rows = head_hidden_gradient(*given[:3], rule, sloped=sloped, logp=found.logp.detach(), **knobs)
        projection = head_projection(*given[:3], given.matrix, rule, sloped=sloped, **knobs)
        sums = torch.einsum("t,tv,th->vh", given.share.double(), errors, wide)
        result[f"sum {sloped}"] = distance(total, sums)
        result[f"rows {sloped}"] = distance(rows, errors @ given.weight.double())
        result[f"projection {sloped}"] = distance(projection, torch.einsum("tv,vh,th->t", errors, given.matrix.double(), wide))
    return result


def strided(given: Case) -> Case:
    """The same numbers, rows apart and the heads by columns."""
    by_columns = {name: getattr(given, name).T.contiguous().T for name in ("weight", "matrix")}
    return given._replace(hidden=given.hidden.repeat(1, 2)[:, : given.hidden.shape[1]], **by_columns)


def main() -> None:
    mend_interpreter()
    # Of the first shape's three tiles of vocabulary one run has two, and of its three blocks of tokens one group has two.
    triton_launch.MOST_RUNS, triton_launch.CACHED_BYTES = 2, 2 * 16 * 24 * 4
    report = {}
    for tile_name, tile in TILES.items():
        triton_launch.tiles_for = lambda *_, tile=tile: Tiles(tile, tile, tile)
        for rule_name in ("plain", "scaled", "capped"):
            report[f"{tile_name} {rule_name}"] = distances(case(SHAPES[0], torch.float32), RULES[rule_name])
        report[f"{tile_name} even"] = distances(case(SHAPES[1], torch.float32), RULES["capped"])
        report[f"{tile_name} strided"] = distances(strided(case(SHAPES[0], torch.float32)), RULES["capped"])
        report[f"{tile_name} half"] = distances(case(SHAPES[0], torch.float16), RULES["scaled"])
        kept, triton_launch.error_dtype = triton_launch.error_dtype, lambda _: torch.bfloat16
        report[f"{tile_name} errors in bfloat16"] = distances(case(SHAPES[0], torch.float32), RULES["capped"])
        triton_launch.error_dtype = kept
        tiny = case(SHAPES[0], torch.float16)
        sums = [head_weight_sum(*tiny[:3], tiny.share * factor, backend="triton") / factor for factor in (1.0, 1e-9)]
        report[f"{tile_name} tiny shares"] = {"sum": distance(sums[1], sums[0].double())}
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
