"""The LM head in Triton: tile sizes by the GPU's memory, and launches whose logits stay in registers."""

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tokencredit.kernels.lm_head.chunked import Sweep
from tokencredit.kernels.lm_head.precision import is_half
from tokencredit.kernels.lm_head.rule import HeadRule
from tokencredit.kernels.lm_head.triton_kernels import combine_kernel, error_kernel, sweep_kernel


class Tile(NamedTuple):
    tokens: int
    vocab: int
    width: int
    warps: int
    stages: int
    descriptors: bool = False
    """Loads by the copy engine of Hopper and later; rows must then be multiples of 16 bytes."""
    flatten: bool = False
    """Loads for the next tile start while this one is summed."""
    described_out: bool = False
    """Stores by the copy engine too: fewer registers, more shared memory."""


class Tiles(NamedTuple):
    sweep: Tile
    projection: Tile
    error: Tile


SMALL = Tile(64, 64, 32, 4, 2)
AMPERE = Tile(128, 128, 32, 8, 3)
HOPPER = Tiles(
    sweep=Tile(128, 256, 64, 8, 4, True, True),
    projection=Tile(128, 128, 64, 8, 3, True),
    error=Tile(128, 128, 64, 4, 2, True, True, described_out=True),
)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def tiles_for(device: torch.device, dtype: torch.dtype) -> Tiles:
    if device.type != "cuda" or dtype == torch.float32:
        return Tiles(SMALL, SMALL, SMALL)
    if torch.version.hip is None and _capability(device) >= (9, 0):
        return HOPPER
    return Tiles(AMPERE, AMPERE._replace(stages=2), AMPERE)


MOST_RUNS = 128
WAVES = 16
"""Programs a processor gets one after another: enough that the last ones, which not all processors share, weigh little."""
CACHED_BYTES = 16 << 20
"""Hidden states that programs at work together read: a third of the cache of the GPUs this was measured on."""


class _Cut(NamedTuple):
    """Programs: as many as token blocks times runs, each over the tiles of a run."""

    token_blocks: int
    runs: int
    tiles_per_run: int


def _ceil(length: int, size: int) -> int:
    return -(-length // size)


def _cut(tok: int, vocab: int, tile: Tile, device: torch.device) -> _Cut:
    token_blocks, vocab_tiles = _ceil(tok, tile.tokens), _ceil(vocab, tile.vocab)
    runs = min(MOST_RUNS, vocab_tiles, _ceil(WAVES * 2 * processors(device), token_blocks))
    tiles_per_run = _ceil(vocab_tiles, runs)
    return _Cut(token_blocks, _ceil(vocab_tiles, tiles_per_run), tiles_per_run)


def _start(kernel: Any, programs: int, *arguments: Any, warps: int = 4, stages: int = 3, **constants: Any) -> None:
    kernel[(programs,)](*arguments, **constants, num_warps=warps, num_stages=stages)


def _rowwise(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _describable(*tensors: Tensor) -> bool:
    return all(t.stride(0) * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0 for t in tensors)


def _source(tensor: Tensor, rows: int, tile: Tile, described: bool) -> Any:
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [rows, tile.width]) if described else tensor


def _precision(dtype: torch.dtype) -> str:
    return "tf32" if is_half(dtype) else "ieee"


def _group(hidden: Tensor, tile: Tile) -> int:
    return max(1, CACHED_BYTES // (tile.tokens * hidden.shape[1] * hidden.element_size()))


def _digits(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The matrix in `dtype`; where that drops digits, what it dropped too."""
    leading = matrix.to(dtype)
    return (leading,) if matrix.dtype == dtype else (leading, (matrix - leading).to(dtype))


def sweep(
    hidden: Float[Tensor, "tok hid"],
    weight: Float[Tensor, "vocab hid"],
    tokens: Int[Tensor, " tok"],
    rule: HeadRule,
    *,
    buffer_bytes: int,
    matrix: Float[Tensor, "vocab hid"] | None = None,
    sloped: bool = False,
    tile: Tile | None = None,
) -> Sweep:
    del buffer_bytes  # temporary memory is a few numbers per token and run
    hidden, weight = _rowwise(hidden), _rowwise(weight)
    tok, hid = hidden.shape
    matrix = None if matrix is None else _rowwise(matrix)
    matrices = () if matrix is None else _digits(matrix, hidden.dtype)
    if tile is None:
        tiles = tiles_for(hidden.device, hidden.dtype)
        tile = tiles.projection if matrices else tiles.sweep
    out = torch.empty(5 if matrices else 4, tok, dtype=torch.float32, device=hidden.device)
    result = Sweep(out[0], out[1], out[2], out[3], out[4] if matrices else None)
    if not tok:
        return result
    cut = _cut(tok, len(weight), tile, hidden.device)
    partial = torch.empty(len(out), cut.runs, tok, dtype=torch.float32, device=hidden.device)
    described = tile.descriptors and _describable(hidden, weight, *matrices)
    sources = [_source(part, tile.vocab, tile, described) for part in (weight, *matrices)]
    leading = matrices[0] if matrices else weight
    rule_numbers = rule.steepness, rule.limit or 1.0
    _start(
        sweep_kernel,
        cut.token_blocks * cut.runs,
        _source(hidden, tile.tokens, tile, described),
        sources[0],
        sources[min(1, len(matrices))],
        sources[-1],
        partial,
        tok,
        len(weight),
        hidden.stride(0),
        weight.stride(0),
        leading.stride(0),
        *cut,
        _group(hidden, tile),
        *rule_numbers,
        HID=hid,
        TOKENS=tile.tokens,
        VOCAB=tile.vocab,
        WIDTH=tile.width,
        EVEN_VOCAB=len(weight) % tile.vocab == 0,
        CAPPED=rule.limit is not None,
        MATRICES=len(matrices),
        SLOPED=sloped,
        DESCRIPTORS=described,
        FLATTEN=tile.flatten,
        PRECISION=_precision(hidden.dtype),
        warps=tile.warps,
        stages=tile.stages,
    )
    rows = 16
    _start(
        combine_kernel,
        _ceil(tok, rows),
        partial,
        hidden,
        weight,
        weight if matrix is None else matrix,
        tokens,
        out,
        tok,
        hidden.stride(0),
        weight.stride(0),
        (weight if matrix is None else matrix).stride(0),
        cut.runs,
        *rule_numbers,
        HID=hid,
        RUNS=triton.next_power_of_2(cut.runs),
        TOKENS=rows,
        WIDTH=min(128, triton.next_power_of_2(hid)),
        CAPPED=rule.limit is not None,
        PROJECTED=bool(matrices),
        SLOPED=sloped,
    )
    return result


def error_dtype(hidden: Tensor) -> torch.dtype:
    return hidden.dtype


def error_bytes(hidden: Tensor) -> int:
    return hidden.element_size()


def write_errors(
    out: Float[Tensor, "tok run"],
    hidden: Float[Tensor, "tok hid"],
    weight: Float[Tensor, "run hid"],
    tokens: Int[Tensor, " tok"],
    log_normaliser: Float[Tensor, " tok"],
    share: Float[Tensor, " tok"],
    rule: HeadRule,
    *,
    sloped: bool,
    remainder: Float[Tensor, "tok run"] | None = None,
    tile: Tile | None = None,
) -> None:
    """As `chunked.write_errors`, in one pass; `remainder` lies in memory as `out` does."""
    hidden, weight = _rowwise(hidden), _rowwise(weight)
    tile = tile or tiles_for(hidden.device, hidden.dtype).error
    cut = _cut(len(hidden), len(weight), tile, hidden.device)
    described = tile.descriptors and _describable(hidden, weight)
    outs = (out, out if remainder is None else remainder)
    described_out = tile.described_out and _describable(*outs)
    _start(
        error_kernel,
        cut.token_blocks * cut.runs,
        _source(hidden, tile.tokens, tile, described),
        _source(weight, tile.vocab, tile, described),
        tokens,
        log_normaliser,
        share.contiguous(),
        *(_source(each, tile.tokens, tile._replace(width=tile.vocab), described_out) for each in outs),
        len(hidden),
        len(weight),
        hidden.stride(0),
        weight.stride(0),
        out.stride(0),
        *cut,
        _group(hidden, tile),
        rule.steepness,
        rule.limit or 1.0,
        HID=hidden.shape[1],
        TOKENS=tile.tokens,
        VOCAB=tile.vocab,
        WIDTH=tile.width,
        CAPPED=rule.limit is not None,
        SLOPED=sloped,
        DESCRIPTORS=described,
        DESCRIBED_OUT=described_out,
        REMAINDER=remainder is not None,
        FLATTEN=tile.flatten,
        PRECISION=_precision(hidden.dtype),
        warps=tile.warps,
        stages=tile.stages,
    )
