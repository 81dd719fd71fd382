"""Every part of the speed benchmark runs small on a CPU, and finds the numbers that it promises."""

import json
import math
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tokencredit.credit.delta import delta_coefficients
from tokencredit.lab.speed import trl_loss
from tokencredit.lab.speed.contenders import OurPath, bench_config, load_of
from tokencredit.lab.speed.delta import Chunk, first_centroids, published_coefficients
from tokencredit.lab.speed.run import ON_SHAPES, describe_machine, module_of, tables
from tokencredit.lab.speed.timing import Ceilings
from tokencredit.lab.speed.workload import TINY, Bench, Load, RandomRewards, make_batch, save_model, update_flops
from tokencredit.policy.policy import load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample

CPU = torch.device("cpu")
BENCH = Bench(CPU, (TINY,), 1, 0, Ceilings(1e11, 1e10, "float32"), lambda _: None)


@cache
def measured(part: str) -> dict[str, Any]:
    return json.loads(json.dumps(module_of(part).measure(BENCH)))


def ordered(spread: dict[str, float]) -> bool:
    return 0 < spread["low"] <= spread["median"] <= spread["high"]


@pytest.mark.parametrize("part", ON_SHAPES)
def test_what_was_found_can_be_shown(part: str) -> None:
    shown = tables(part, measured(part))
    assert shown
    for table in shown:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_update_tells_speed_and_utilisation() -> None:
    ragged, even = measured("update")["runs"]
    assert set(ragged["contenders"]) >= {"ours dapo", "ours delta"}
    assert ragged["load"]["all_tokens"] < even["load"]["all_tokens"] == even["load"]["padded_tokens"]
    batch = make_batch(TINY, load_of(BENCH, TINY), device=CPU, seed=0)
    assert ragged["model_flops"] == update_flops(TINY, batch.rows)
    for row in ragged["contenders"].values():
        assert ordered(row["seconds"])
        low = row["seconds"]["low"]
        assert row["loss_tokens_per_second"]["high"] == pytest.approx(batch.loss_tokens / low)
        assert row["model_flop_utilisation"]["high"] == pytest.approx(ragged["model_flops"] / low / 1e11)
        assert len(row["gradient_norm"]) == 4
        assert row["broken"] is None
        assert row["stages"]["update"]["median"] > row["stages"]["credit"]["median"] > 0
        assert 0.5 < sum(part["median"] for part in row["stages"].values()) / row["seconds"]["median"] <= 1
        assert row["compile_seconds"] >= 0
    assert ragged["contenders"]["ours delta"]["gradient_norm"] != ragged["contenders"]["ours dapo"]["gradient_norm"]
    assert len(ragged["tried"]["ours dapo"]) == 2
    assert set(even["contenders"]) <= {"ours dapo", "trl"}
    assert set(ragged["spent_seconds"]) >= {"search", "warm up", "turns"}
    assert ragged["graphs_compiled_during_turns"] == 0


def test_ours_is_the_engine_s_own_update() -> None:
    """The same batch twice from the same weights: the same gradients, whatever the passes are cut to."""
    load = load_of(BENCH, TINY)
    batch = make_batch(TINY, load, device=CPU, seed=0)
    norms = [OurPath(BENCH, TINY, load, batch, bench_config(BENCH, load, "dapo", max_tokens=n))().gradient_norm for n in (36, 288)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert all(norm > 0.1 for norm in norms[0])


def test_delta_costs_no_pass_and_gives_what_the_published_algorithm_gives() -> None:
    (run,) = measured("delta")["runs"]
    assert run["passes"] == {"ours": 0, "published": 3}
    assert ordered(run["seconds"]["ours"])
    assert ordered(run["published_over_ours"])
    assert ordered(run["share_of_update"])
    assert run["largest_difference"]["from_float64_on_the_same_features"] < 1e-5
    assert run["largest_difference"]["from_published_by_its_own_passes"] < 1e-4
    assert run["feature_bytes"] == run["tokens"] * TINY.width * 4


@pytest.mark.parametrize("refinements", [0, 1, 2])
def test_the_published_twin_equals_ours_in_k_plus_two_passes(refinements: int) -> None:
    drawn = torch.Generator().manual_seed(1)
    mask = torch.rand(6, 5, generator=drawn) < 0.8
    mask[:, 0] = True
    hidden, logp = torch.randn(6, 5, 7, generator=drawn), -torch.rand(6, 5, generator=drawn)
    advantage = torch.tensor([1.0, -0.5, 0.0, 0.7, -1.2, 0.0])
    taken = 0

    def passes() -> Iterator[Chunk]:
        nonlocal taken
        taken += 1
        for rows in torch.arange(6).split(4):
            yield Chunk(rows, logp[rows][mask[rows]], hidden[rows][mask[rows]])

    first = first_centroids(passes(), advantage, mask)
    taken = 0
    found = published_coefficients(passes, first, advantage, mask, refinements=refinements)
    assert taken == refinements + 2
    ours = delta_coefficients(logp, hidden, advantage, mask, refinements=refinements)
    torch.testing.assert_close(found.float(), ours, atol=2e-5, rtol=0)
    assert float(ours[mask].max() - ours[mask].min()) > 0.1


def test_head_compares_ours_with_all_logits() -> None:
    for found in measured("head")["cases"]:
        rows = found["contenders"]
        assert rows["ours fused"]["why_not"] == rows["liger cross entropy"]["why_not"] == "needs a GPU"
        apart = rows["ours chunked"]["apart_from_naive"]
        assert apart["logp"] < 1e-4
        assert apart["hidden_gradient"] < 1e-4
        assert apart["weight_gradient"] < 1e-4
        for way in ("forward", "forward_backward"):
            part = rows["ours chunked"][way]
            assert part["share_of_floor"]["high"] == pytest.approx(found["floor_seconds"][way] / part["seconds"]["low"])
            assert ordered(part["naive_over_it"])


def test_sampling_has_generate_beside_ours() -> None:
    (run,) = measured("sampling")["runs"]
    assert set(run["contenders"]) >= {"generate", "generate static, compiled", "ours plain"}
    assert set(run["contenders"]) | set(run["left_out"]) >= {"ours fast"}
    for row in run["contenders"].values():
        assert row["tokens_per_second"]["high"] == pytest.approx(row["tokens"] / row["seconds"]["low"])
        assert row["seconds_per_token_step"]["median"] == pytest.approx(row["seconds"]["median"] / run["load"]["response"])
    load = run["load"]
    assert run["contenders"]["generate"]["tokens"] == load["groups"] * load["group_size"] * load["response"]


def test_step_charges_every_stage() -> None:
    result = measured("step")
    assert set(result["recipes"]) == {"dapo", "delta", "cancellation"}
    for row in result["recipes"].values():
        assert set(row["stages"]) >= {"sample", "grade", "score", "credit", "plan", "update", "between stages"}
        assert sum(row["shares"].values()) == pytest.approx(1, abs=1e-9)
        assert sum(row["stages"].values()) == pytest.approx(row["seconds"]["median"])
        assert row["chosen"] == {"packed": False, "compiled": False, "sampler": "plain", "dtype": "float32"}
        assert row["response_tokens"] > 0
        assert ordered(row["tokens_per_second"])
    assert result["over_dapo"]["dapo"] == {"median": 1.0, "low": 1.0, "high": 1.0}


def test_growth_doubles_one_thing_at_a_time() -> None:
    result = measured("growth")
    for name, factor in (("rollouts", 2.0), ("length", 2.0)):
        sizes = result["axes"][name]["sizes"]
        assert [later / earlier for earlier, later in pairwise(sizes)] == [factor, factor]
    model = result["axes"]["model"]["sizes"]
    assert model == sorted(set(model))
    for axis in result["axes"].values():
        assert len(axis["seconds"]) == len(axis["sizes"]) == 3
        assert all(math.isfinite(value) for value in axis["exponents"].values())
        assert {"whole", "sample", "update"} <= set(axis["exponents"])
    passes = result["largest_pass"]["passes"]
    assert passes["ours"] == {"tokens": 16 * 18, "peak": None, "too_many": None}
    assert passes["ours, layers computed again"]["tokens"] == 16 * 18


def test_every_group_of_a_batch_has_something_to_learn() -> None:
    load = Load(groups=20, group_size=4, prompt=8, response=16)
    batch = make_batch(TINY, load, device=CPU, seed=3)
    by_group = batch.score.view(20, 4).mean(-1)
    assert bool(((by_group > 0) & (by_group < 1)).all())
    lengths = batch.rollouts.mask.sum(-1)
    assert 2 <= int(lengths.min()) < int(lengths.max()) <= 16
    assert {len(prompt) for prompt in batch.rollouts.prompts} == {8}
    padded = make_batch(TINY, load, device=CPU, seed=3, ragged_prompts=True).rollouts.prompts
    assert {4, 8} <= {len(prompt) for prompt in padded} <= set(range(4, 9))
    assert batch.all_tokens == batch.loss_tokens + sum(len(prompt) for prompt in batch.rollouts.prompts)
    assert bool((make_batch(TINY, load, device=CPU, seed=3, even=True).rollouts.mask).all())


def test_a_saved_model_ends_some_responses_before_the_limit() -> None:
    load = Load(groups=4, group_size=16, prompt=5, response=16)
    with tempfile.TemporaryDirectory() as folder:
        save_model(TINY, Path(folder), device=CPU, load=load, seed=0)
        policy = load_policy(folder, device=CPU, dtype="float32")
    asked = [policy.encode(problem.prompt) for problem in RandomRewards(TINY.vocab, 5).problems(4, split="train", seed=0)]
    assert {len(prompt) for prompt in asked} == {5}
    drawn = sample(policy, asked, SamplingParams(group_size=16, max_new_tokens=16, seed=0)).rollouts
    assert 0.2 < float(drawn.finished.float().mean()) < 0.95


def test_what_stands_in_for_a_package_is_forgotten() -> None:
    with trl_loss._standing_in() as missing:
        for name in missing:
            assert name in sys.modules
    for name in missing:
        assert name not in sys.modules


def test_the_machine_is_told() -> None:
    told = describe_machine(CPU)
    assert told["device"] == "cpu"
    assert set(told["beside"]) >= {"trl", "liger-kernel"}
