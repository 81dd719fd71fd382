"""Which tile a product gets: what keeps sums in one order holds for every size, and memory is never asked for that is not there."""

import pytest
import torch

from tokencredit.kernels.decode.state import VOCABULARY_BLOCK, square_tile
from tokencredit.kernels.decode.triton_launch import HOPPER_MEMORY, TILES, Tile, tile_for, tile_for_sum


def test_every_tile_sums_in_one_order() -> None:
    """One instruction (64 slots and more), inner steps of 16, warps beside each other along the slots, 16 rows for each at least."""
    tiles = [tile for steps in TILES.values() for _, tile in steps]
    assert all(tile.slots >= 64 and tile.inner % 16 == 0 and tile.slots % (16 * tile.warps) == 0 for tile in tiles)
    assert {tile.columns for _, tile in TILES["head"]} == {VOCABULARY_BLOCK}
    for steps in TILES.values():
        assert steps[0][0] == 0
        assert [least for least, _ in steps] == sorted(least for least, _ in steps)


@pytest.mark.parametrize("product", TILES)
def test_more_results_never_get_a_smaller_tile(product: str) -> None:
    for columns in (64, 576, 896, 4864, 151936):
        areas = [
            tile.slots * tile.columns
            for tile in (tile_for(product, slots, columns, torch.bfloat16) for slots in (1, 8, 64, 256, 1024, 9999))
        ]
        assert areas == sorted(areas)


def test_tiles_are_chosen_by_slots_times_columns() -> None:
    assert tile_for("qkv", 8, 960, torch.bfloat16) == tile_for("qkv", 256, 960, torch.bfloat16) == TILES["qkv"][0][1]
    assert tile_for("qkv", 1024, 960, torch.bfloat16) == TILES["qkv"][-1][1]
    assert tile_for_sum(256, 576, 1536, torch.bfloat16) == TILES["add_long"][0][1]
    assert {tile_for_sum(256, 576, inner, torch.bfloat16) for inner in (576, 896, 1500)} == {TILES["add"][0][1]}
    assert tile_for("head", 256, 49152, torch.float32).columns == VOCABULARY_BLOCK


def test_tiles_ahead_fit_into_a_processor_s_memory() -> None:
    assert Tile(128, 128, 64, 8, 3).within(HOPPER_MEMORY, 2, 1).stages == 3
    assert Tile(128, 128, 64, 8, 3).within(100_000, 2, 2) == Tile(128, 128, 64, 8, 2)
    assert Tile(128, 128, 64, 8, 3).within(1000, 2, 1).stages == 1
    for steps in TILES.values():
        for _, tile in steps:
            # Columns are widened to the tile of squares in models of 2048 and more.
            widest = tile._replace(columns=max(tile.columns, square_tile(4096)))
            assert widest.within(HOPPER_MEMORY, 2, 1) == widest
