"""The loss path that the benchmark measures is TRL's own, and does the same work as ours."""

from typing import Any

import pytest
import torch

from tokencredit.lab.speed.contenders import OurPath, bench_config, load_of, prepare, trl_settings
from tokencredit.lab.speed.timing import Ceilings
from tokencredit.lab.speed.trl_loss import TrlPath, load_trl
from tokencredit.lab.speed.update import check_left_padding_cases, measure_shape
from tokencredit.lab.speed.workload import TINY, Bench, make_batch

BENCH = Bench(torch.device("cpu"), (TINY,), 1, 0, Ceilings(1e11, 1e10, "float32"), lambda _: None)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("ragged_prompts", [False, True])
def test_every_optimizer_step_has_the_gradient_norm_of_ours(checkpointing: bool, ragged_prompts: bool) -> None:
    load = load_of(BENCH, TINY)
    batch = make_batch(TINY, load, device=BENCH.device, seed=0, ragged_prompts=ragged_prompts)
    config = bench_config(BENCH, load, "dapo", max_tokens=load.rows * load.positions)
    ours = OurPath(BENCH, TINY, load, batch, config)().gradient_norm
    prepared = prepare(BENCH, TINY, load, batch, config)
    for setting in trl_settings(BENCH, TINY, load, prepared, config, checkpointing=checkpointing):
        path: Any = setting.make()
        assert path() == pytest.approx(ours, rel=1e-4), setting.name
        assert set(path.stages) == {"score", "update"}


def test_update_compares_with_trl() -> None:
    run = measure_shape(BENCH, TINY, even=False)
    assert {"trl", "trl checkpointing"} <= set(run["contenders"])
    assert run["trl"] == {"version": load_trl().version, "stand_ins": []}
    assert run["trl_over_ours"]["trl / ours dapo"]["seconds"]["median"] > 0
    assert {row["broken"] for row in run["contenders"].values()} == {None}
    assert len(run["tried"]["trl"]) == 2


def test_a_gradient_that_is_not_ours_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TrlPath.loss
    monkeypatch.setattr(TrlPath, "loss", lambda *given: right(*given) * 1.05)
    run = measure_shape(BENCH, TINY, even=True)
    assert run["contenders"]["trl"]["broken"] == "broken: gradient norm is off by 5.0 %"
    assert run["trl_over_ours"] == {}


def test_prompts_of_different_length_are_looked_at() -> None:
    found = check_left_padding_cases(BENCH)
    assert [one["row_tokens"] for one in found] == [18, 18, 16]
    for one in found:
        assert one["broken"] is None
        assert one["gradient_norm"] == pytest.approx(one["our_gradient_norm"], rel=1e-4)
