"""Wrong versions of the fused DelTA, interpreted on the CPU: each is found out by the case it names."""

from pathlib import Path

import pytest

from oracle.fused_gaps import SOURCES, interpreted

MUTANTS: dict[str, tuple[str, str, str, str]] = {
    "zero advantage is judged": ("unread", "rows", "two_sided & (size != 0)", "two_sided"),
    "one side is enough": ("unread", "rows", "(positive > 0) & (negative > 0)", "(positive > 0)"),
    "scopes are numbered backwards": ("temperatures", "rows", "theirs[None, :] < my_scope[:, None]", "theirs[None, :] > my_scope[:, None]"),
    "no confidence": ("unrefined", "rows", "(1.0 - chance)", "(1.0 - 0 * chance)"),
    "a response weighs as a token": ("unrefined", "rows", "(size * all_tokens.to(tl.float64))", "size"),
    "the mean of one side": ("unrefined", "rows", "all_tokens[None, :], 0), 1)", "(all_tokens * (size > 0))[None, :], 0), 1)"),
    "padded states lie close": ("padded", "rows", "row * response_stride + columns)", "row * width + columns)"),
    "rows of features from other chunks": ("in chunks", "rows", "tl.minimum(stop, end)", "stop"),
    "no side is turned": ("unrefined", "scores", "(2.0 - 4.0 * (tile_side % 2))", "(2.0 + 0.0 * tile_side)"),
    "sums instead of means": ("unrefined", "scores", " / tl.maximum(tl.load(mass + tile_side), FLOOR)", " + 0 * tl.load(mass + tile_side)"),
    "the largest split alone": ("unrefined", "scores", "tl.sum(tl.load(at, mask=inside[None", "tl.max(tl.load(at, mask=inside[None"),
    "one direction for all": ("group", "scores", ".to(tl.int64) // 2 * WIDTH", ".to(tl.int64) * 0"),
    "means without weights": ("unrefined", "scores", "tl.sum(exact * tl.load(weight", "tl.sum(exact + 0 * tl.load(weight"),
    "deviations forget the gap": ("unrefined", "scores", " + gap * gap * number.to(tl.float64)", ""),
    "pooled deviations forget the gap": ("symmetric", "scores", " + gap * gap * one * two / tl.maximum(one + two, 1.0)", ""),
    "half an offset": ("unrefined", "scores", "0.5 * (positive + negative)", "0.5 * positive"),
    "margins are contrasts": ("unrefined", "scores", "tl.where(side_id % 2 == 0, contrast, -contrast)", "contrast"),
    "one fixed temperature": ("fixed", "scores", "tl.where(side_id % 2 == 0, fixed_positive, fixed_negative)", "fixed_positive"),
    "shares without sizes": ("batch", "scores", "(share * tl.load(size", "(share + 0 * tl.load(size"),
    "scores of one side": ("unrefined", "scores", " + tl.load(totals + 2 * scope + 1, mask=two_sided, other=0.0)", ""),
    "features of anybody": ("of other tokens", "scores", "mismatch = (expected >= 0)", "mismatch = (expected < 0)"),
    "the temperature of the margins judged": ("batch", "fused", "found if lagged is None else lagged", "found"),
    "each rank its own masses": ("on two ranks", "fused", "mass = options.reduce(TensorSum(mass)).total", "mass = mass * 1"),
    "each rank its own direction": ("on two ranks", "fused", "direction = options.reduce(", "direction = ("),
    "each rank its own moments": ("on two ranks", "fused", "moments = options.reduce(", "moments = ("),
    "each rank its own offset": ("on two ranks", "fused", "options.reduce(TensorSum(weighted)).total", "weighted"),
    "each rank its own mean": ("on two ranks", "fused", "options.reduce(TensorSum(each)).total for", "each for"),
}
"""Which case shows it, the module, what is changed and into what."""


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    folder = tmp_path_factory.mktemp("fused")
    asked: dict[str, tuple[dict[str, Path], str | None]] = {}
    for number, (mutant, (case, module, right, wrong)) in enumerate(MUTANTS.items()):
        source = SOURCES[module].read_text()
        assert source.count(right) == 1, f"{mutant}: {right!r} is there {source.count(right)} times"
        path = folder / f"wrong_{number}.py"
        path.write_text(source.replace(right, wrong))
        asked[mutant] = {module: path}, case
    return interpreted(asked)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS)
def test_changed_code_is_found_out(gaps: dict[str, dict[str, float]], mutant: str) -> None:
    assert gaps[mutant][MUTANTS[mutant][0]] > 1e-4
