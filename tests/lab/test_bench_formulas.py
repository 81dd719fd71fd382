"""The arithmetic of the benchmark: FLOPs, floors, exponents, turns."""

import gc
import json
import math
from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tokencredit.errors import GuardError
from tokencredit.lab.speed import timing
from tokencredit.lab.speed.contenders import Search, Setting
from tokencredit.lab.speed.growth import exponent, largest
from tokencredit.lab.speed.lm_head import Case
from tokencredit.lab.speed.sampling import sampling_floor
from tokencredit.lab.speed.timing import (
    Call,
    Ceilings,
    Tried,
    WaitingStopwatch,
    in_turns,
    measure_ceilings,
    ratios,
    seconds,
    spread,
    try_once,
)
from tokencredit.lab.speed.update import STAGES, broken, compare, show, verdicts, without_cudnn_attention, written
from tokencredit.lab.speed.workload import QWEN2_500M, SMOLLM2_135M, TINY, Bench, Load, Row, Shape, build_model, forward_flops, update_flops

CPU = torch.device("cpu")
HAND = Shape("hand", layers=2, width=4, heads=2, kv_heads=1, mlp=8, vocab=10)
CEILINGS = Ceilings(flops_per_second=1000.0, bytes_per_second=100.0, dtype="float32")


@pytest.mark.parametrize(("shape", "weights"), [(SMOLLM2_135M, 134_515_008), (QWEN2_500M, 494_032_768)])
def test_shapes_are_those_of_the_models_they_are_named_after(shape: Shape, weights: int) -> None:
    with torch.device("meta"):
        model = build_model(shape, device=torch.device("meta"), positions=64)
    assert sum(weight.numel() for weight in model.parameters()) == weights
    linear = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    assert sum(layer.weight.numel() for layer in linear) == shape.body + shape.head


def test_flops_by_hand() -> None:
    # A layer: 16 + 8 + 8 + 16 for attention, 3 x 32 for the MLP.
    assert HAND.body == 2 * 144
    assert HAND.head == 40
    rows = [Row(tokens=3, predicted=2), Row(tokens=1, predicted=1)]
    # Pairs of the causal triangle: 6 and 1; scores and values take 2 x width each.
    assert forward_flops(HAND, rows) == 2 * 288 * 4 + 2 * (6 + 1) * 2 * 2 * 4 + 2 * 40 * 3
    assert update_flops(HAND, rows) == 4 * forward_flops(HAND, rows)


def test_flops_are_those_that_torch_counts() -> None:
    model = build_model(TINY, device=CPU, positions=8)
    model.set_attn_implementation("eager")
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(input_ids=torch.ones(5, 1, dtype=torch.long))
    # Rows of one token: there a causal triangle is the whole square.
    assert counter.get_total_flops() == forward_flops(TINY, [Row(1, 1)] * 5)


def test_a_floor_is_the_longer_of_arithmetic_and_traffic() -> None:
    assert CEILINGS.floor(flops=2000, moved=100) == 2.0
    assert CEILINGS.floor(flops=1000, moved=500) == 5.0


def test_ceilings_are_measured() -> None:
    found = measure_ceilings(CPU, tries=1)
    assert 1e8 < found.flops_per_second < 1e14
    assert 1e7 < found.bytes_per_second < 1e13


def test_the_work_of_a_head_by_hand() -> None:
    case = Case(tokens=3, width=4, vocab=10)
    assert case.floor_work(backward=False, element=2) == (2 * 120, 2 * (12 + 40))
    assert case.floor_work(backward=True, element=2) == (6 * 120, 2 * 2 * (12 + 40))


def test_the_floor_of_sampling_by_hand() -> None:
    load = Load(groups=1, group_size=2, prompt=3, response=4)
    floor = sampling_floor(HAND, load, CEILINGS, element=2)
    assert floor.prefill == 2 * (288 + 40) / 100
    slow = CEILINGS._replace(flops_per_second=1.0)
    assert sampling_floor(HAND, load, slow, element=2).prefill == forward_flops(HAND, [Row(3, 1)])
    # Keys and values: 2 x 2 layers x width 2 x 2 rows, read at the mean length 5 and written once; logits there and back.
    assert floor.step == 2 * (288 + 40 + 16 * (5 + 1) + 2 * 2 * 10) / 100
    assert floor.whole(4) == pytest.approx(floor.prefill + 4 * floor.step)


def test_an_exponent_is_the_slope_in_logs() -> None:
    sizes = [8.0, 16.0, 64.0, 100.0]
    assert exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    # Least squares of (0, 0), (1, 1), (2, 0) in powers of e: level.
    assert exponent([1.0, math.e, math.e**2], [1.0, math.e, 1.0]) == pytest.approx(0.0)
    with pytest.raises(ValueError, match="sizes are all 4"):
        exponent([4.0, 4.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="sizes holds 1 and values 1"):
        exponent([4.0], [1.0])


def test_contenders_take_turns_and_warm_up_is_left_out() -> None:
    said: list[str] = []
    contenders = {"a": lambda: said.append("a"), "b": lambda: said.append("b")}
    taken = in_turns(contenders, CPU, repeats=2, warm_up=1, calls=2, after=lambda name: said.append(name.upper()))
    assert said == ["a", "b", "a", "a", "A", "b", "b", "B", "a", "a", "A", "b", "b", "B"]
    assert {name: len(values) for name, values in taken.items()} == {"a": 2, "b": 2}


def test_ratios_are_of_one_turn_each() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert ratios([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == {"median": 3.0, "low": 2.0, "high": 4.0}


def test_no_garbage_is_collected_while_time_is_taken() -> None:
    seen: list[bool] = []
    seconds(lambda: seen.append(gc.isenabled()), CPU)
    assert seen == [False]
    assert gc.isenabled()


def test_a_stage_ends_when_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(timing, "wait", lambda _: said.append("waited"))
    watch = WaitingStopwatch(CPU)
    with watch.stage("score"):
        said.append("scored")
    with watch.stage("update"):
        said.append("updated")
    assert said == ["scored", "waited", "updated", "waited"]
    assert list(watch.seconds) == ["score", "update"]


SOUND = {"ours dapo": [1.0, 2.0], "ours delta": [5.0, 6.0], "trl": [1.01, 1.99]}


def test_a_contender_with_another_gradient_is_broken() -> None:
    assert verdicts(SOUND) == dict.fromkeys(SOUND, None)
    assert verdicts(SOUND | {"trl": [1.0, math.nan]})["trl"] == "broken: gradient is nan"
    assert verdicts(SOUND | {"ours delta": [1.0, math.inf]})["ours delta"] == "broken: gradient is inf"
    assert verdicts(SOUND | {"trl": [1.0, 2.06]})["trl"] == "broken: gradient norm is off by 3.0 %"
    assert verdicts(SOUND | {"trl": [1.0]})["trl"] == "broken: 1 optimizer steps instead of 2"
    assert broken([]) == "broken: no gradient"
    assert json.dumps(written([1.0, math.nan])) == '[1.0, "nan"]'


def test_ours_and_theirs_are_compared_pair_by_pair() -> None:
    rows = {"ours dapo": {"peak_bytes": 3}, "trl": {"peak_bytes": 6}, "trl checkpointing": {"peak_bytes": None}}
    rows = {name: row | {"broken": None} for name, row in rows.items()}
    taken = {"ours dapo": [1.0, 2.0], "trl": [2.0, 6.0], "trl checkpointing": [4.0, 4.0]}
    found = compare(rows, taken)
    assert found["trl / ours dapo"] == {"seconds": {"median": 2.5, "low": 2.0, "high": 3.0}, "our_share_of_memory": 0.5}
    assert found["trl checkpointing / ours dapo"]["our_share_of_memory"] is None
    rows["trl"]["broken"] = "broken: gradient is nan"
    assert list(compare(rows, taken)) == ["trl checkpointing / ours dapo"]


def test_no_number_is_shown_of_what_is_broken() -> None:
    row = {
        "setting": "passes of 8 rows",
        "broken": "broken: gradient is nan",
        "gradient_norm": ["nan"],
        "seconds": spread([1.0]),
        "stages": {stage: spread([1.0]) for stage in STAGES},
        "compile_seconds": 0.0,
    }
    load = {"groups": 1, "group_size": 2, "lengths": "ragged", "all_tokens": 3, "padded_tokens": 4}
    run = {"shape": {"name": "hand"}, "load": load, "contenders": {"trl": row}, "trl_over_ours": {}, "left_out": {}, "trl": {}}
    finding = {"name": "as chosen", "row_tokens": 576, "gradient_norm": ["nan"], "our_gradient_norm": [0.5], "broken": row["broken"]}
    table, found = show({"runs": [run | {"graphs_compiled_during_turns": 1}], "findings": [finding]})
    assert table.rows == [("trl", "broken: gradient is nan", *["-"] * 7, "nan")]
    assert "1 graphs were compiled during the measurement: measure again" in table.notes
    assert found.rows == [("as chosen", "576", "nan", "0.5", "broken: gradient is nan")]


def test_the_fastest_setting_that_fits_is_chosen_and_compiling_is_told_apart() -> None:
    settings = [Setting(name, lambda: pytest.fail("made")) for name in ("a", "b", "c")]
    tried = [Tried(3.0, 1, first=10.0), Tried(2.0, 1, first=2.5), Tried(None, None, "out of memory")]
    found = Search(settings, tried)
    assert found.best is settings[1]
    assert found.compiling == 7.5
    assert Search(settings[2:], tried[2:]).best is None


def test_another_attention_kernel_is_taken_for_a_while() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with without_cudnn_attention():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def running_out(limit: int, problem: Exception) -> Callable[[int], Call]:
    def attempt(rows: int) -> Call:
        if rows > limit:
            raise problem
        return lambda: None

    return attempt


@pytest.mark.parametrize("problem", [torch.OutOfMemoryError(), GuardError("out of memory while scoring tokens")])
def test_the_largest_pass_is_found_by_doubling(problem: Exception) -> None:
    bench = Bench(CPU, (TINY,), 1, 0, CEILINGS, lambda _: None)
    found = largest(running_out(40, problem), lambda rows: 10 * rows, bench, most=1024, tell="")
    assert (found.tokens, found.too_many) == (320, 640)
    fits = largest(running_out(40, problem), lambda rows: 10 * rows, bench, most=16, tell="")
    assert (fits.tokens, fits.too_many) == (160, None)
    tried = try_once(lambda: running_out(1, problem)(2), CPU)
    assert (tried.seconds, tried.why_not) == (None, "out of memory")
    assert (try_once(lambda: running_out(2, problem)(2), CPU).first or 0) > 0


def test_what_is_no_lack_of_memory_is_raised() -> None:
    with pytest.raises(GuardError, match="loss is nan"):
        try_once(lambda: running_out(1, GuardError("loss is nan"))(2), CPU)
