"""What processes tell each other, in real groups of three and of two over gloo; started once for all of these tests."""

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from engine.crediting_cases import SPLITS, credit_case, crediting_of, made_up_case
from forked import run_forked
from laws.harness import Edit, loaded_with
from tokencredit.credit.delta.accumulators import CentroidSums, MarginMoments, ScopeIds, ScoreMass
from tokencredit.credit.delta.vectors import DenseVectors
from tokencredit.objective import OBJECTIVES, TokenInputs
from tokencredit.pipeline.credit import MethodState
from tokencredit.pipeline.distributed import SINGLE_PROCESS, ProcessGroup, TorchProcessGroup, loadable, merging
from tokencredit.pipeline.microbatch import step_statistic

RECIPES: dict[str, Any] = {
    "delta": "delta",
    "delta by group, exact head": {"recipe": "delta", "credit": {"scope": "group", "proxy": "head", "temperature": "first-batch"}},
    "fade": "fade",
}
WHOLE_STEP = {"dfpo": OBJECTIVES["dfpo"](), "kl-cov": OBJECTIVES["kl-cov"](share=0.2)}


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None
    name: str


def given_by(rank: int) -> dict[str, Any]:
    """Of another shape and size on every rank, and nothing at all in places."""
    draw = torch.Generator().manual_seed(rank)
    wide = torch.randn(4, 3 + rank, generator=draw)
    return {
        "number": 10 * rank,
        "text": "x" * (1 + 5000 * rank),
        "nothing": None if rank == 1 else rank,
        "pair": Pair(torch.arange(rank), None if rank == 0 else torch.full((2, rank), float("nan")), f"rank {rank}"),
        "half": wide.bfloat16(),
        "slice": wide[1:, :2].t(),
        "mask": wide > 0,
        "exact": wide.double() / 3,
        "tracked": (wide.requires_grad_() * 2).sum(),
    }


def accumulators(rank: int) -> list[Any]:
    """Numbers of very different size, so that sums depend on the order in which they are taken; rank 1 has met nothing."""
    draw = torch.Generator().manual_seed(50 + rank)
    tokens = 0 if rank == 1 else 40 + rank
    vectors = DenseVectors(torch.randn(tokens, 5, generator=draw, dtype=torch.float64) * 10.0**rank)
    value = torch.randn(tokens, generator=draw, dtype=torch.float64) * 10.0**rank
    return [
        CentroidSums().add(vectors, value),
        MarginMoments().add(value.exp().clamp(max=1e3), value),
        ScoreMass().add(value),
        ScopeIds().add(torch.arange(rank, 2 * rank + 1)),
    ]


def contents(accumulator: Any) -> dict[str, Any]:
    return vars(accumulator)


def token_inputs(rank: int, ranks: int) -> list[TokenInputs]:
    """Every rank's rows of one step, in micro-batches of different widths; groups lie on several ranks."""
    batches = []
    for number in range(2):
        rows = torch.arange(3) * ranks * 2 + rank * 2 + number
        draw = torch.Generator().manual_seed(100 * rank + number)
        shape = (3, 4 + number)
        logp, old = (-torch.rand(shape, generator=draw, dtype=torch.float64) for _ in range(2))
        credit = torch.randn(shape, generator=draw, dtype=torch.float64)
        batches.append(TokenInputs(logp, old, credit, credit.abs() > 0.2, rows % 3, advantage=credit[:, 0], row=rows, seed=4))
    return batches


def found_on(group: Any, *, several: int) -> dict[str, Any]:
    """Everything the tests below look at, gathered in one process of a group."""
    ranks = TorchProcessGroup(group, device="cpu:0")
    split = SPLITS["three ranks, rows in any order" if several == 3 else "groups straddle"]
    cases = [made_up_case(0), made_up_case(1)]
    credited: dict[str, Any] = {}
    for name, recipe in RECIPES.items():
        made, state, results = crediting_of(recipe), MethodState(), []
        for case in cases:
            result = credit_case(made, case, state, split[ranks.index], ranks)
            state = result.state
            results.append((result.credited.credit, result.credited.coefficient, tuple(state)))
        credited[name] = results
    return {
        "index": ranks.index,
        "count": ranks.count,
        "gathered": ranks.gather(given_by(ranks.index)),
        "elsewhere": [part["half"].device.type for part in TorchProcessGroup(group, device="meta").gather(given_by(ranks.index))],
        "merged": [contents(merging(ranks)(accumulator)) for accumulator in accumulators(ranks.index)],
        "credited": credited,
        "statistic": {name: step_statistic(made, token_inputs(ranks.index, several), ranks) for name, made in WHOLE_STEP.items()},
    }


def one_process(rank: int, folder: Path) -> None:
    if "lo" in dict(map(reversed, socket.if_nameindex())):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
    pair, single = (torch.distributed.new_group(members) for members in ([1, 2], [0]))
    found = {3: found_on(None, several=3)}
    if rank > 0:
        found[2] = found_on(pair, several=2)
    else:
        alone = given_by(0)
        found[1] = {"same": TorchProcessGroup(single, device="meta").gather(alone)[0] is alone}
    torch.save(found, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[int, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ranks")
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda rank: run_forked(partial(one_process, rank, folder), cwd=folder), range(3)))
    assert [process.returncode for process in done] == [0, 0, 0], "\n".join(process.stderr for process in done)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(3)]


GROUPS = pytest.mark.parametrize("several", [2, 3])


def members(processes: list[dict[int, Any]], several: int) -> list[dict[str, Any]]:
    return [process[several] for process in processes if several in process]


def assert_equal(one: Any, other: Any) -> None:
    """To the bit, and of one type."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert torch.equal(one.nan_to_num(nan=7e7), other.nan_to_num(nan=7e7)) if one.is_floating_point() else torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_equal(mine, theirs)
    else:
        assert one == other


@GROUPS
def test_a_rank_knows_its_place_in_its_group(processes: list, several: int) -> None:
    """The group of two holds the second and the third process."""
    assert [(found["index"], found["count"]) for found in members(processes, several)] == [(rank, several) for rank in range(several)]


@GROUPS
def test_every_rank_gets_what_all_gave_in_their_order(processes: list, several: int) -> None:
    expected = [given_by(rank) for rank in range(several)]
    for given in expected:
        given["tracked"] = given["tracked"].detach()
    for found in members(processes, several):
        for part in found["gathered"]:
            part["tracked"] = part["tracked"].detach()
        assert_equal(found["gathered"], expected)
        assert all(part["slice"].device.type == "cpu" for part in found["gathered"])


@GROUPS
def test_tensors_arrive_on_the_device_of_the_rank(processes: list, several: int) -> None:
    """`meta` stands in for an accelerator: not even the rank's own part stays where it was."""
    assert [found["elsewhere"] for found in members(processes, several)] == [["meta"] * several] * several


def test_a_group_of_one_gives_back_what_it_got(processes: list) -> None:
    assert processes[0][1]["same"]


@GROUPS
def test_merged_accumulators_are_the_same_on_all_ranks_to_the_bit(processes: list, several: int) -> None:
    """And are those of merging one rank after the other."""
    expected = [
        contents(reduce(lambda one, other: one.merge(other), parts)) for parts in zip(*map(accumulators, range(several)), strict=True)
    ]
    for found in members(processes, several):
        assert_equal(found["merged"], expected)


@GROUPS
@pytest.mark.parametrize("name", RECIPES)
def test_credit_over_processes_is_that_of_one_rank(processes: list, several: int, name: str) -> None:
    made, state = crediting_of(RECIPES[name]), MethodState()
    for number, case in enumerate((made_up_case(0), made_up_case(1))):
        alone = credit_case(made, case, state)
        state = alone.state
        for found in members(processes, several):
            assert_equal(found["credited"][name][number], members(processes, several)[0]["credited"][name][number])
            expected = (alone.credited.credit, alone.credited.coefficient, tuple(state))
            torch.testing.assert_close(found["credited"][name][number], expected, rtol=1e-12, atol=1e-12)


@GROUPS
@pytest.mark.parametrize("name", WHOLE_STEP)
def test_a_step_statistic_is_taken_over_all_processes(processes: list, several: int, name: str) -> None:
    everything = [inputs for rank in range(several) for inputs in token_inputs(rank, several)]
    expected = step_statistic(WHOLE_STEP[name], everything)
    assert not torch.equal(torch.as_tensor(expected[0]), torch.as_tensor(step_statistic(WHOLE_STEP[name], everything[:2])[0]))
    for found in members(processes, several):
        assert_equal(found["statistic"][name], expected)


# --- without processes


@pytest.mark.parametrize(
    ("asked", "right"), [("cpu", "cpu"), ("cpu:0", "cpu"), ("cpu:3", "cpu"), ("cuda:1", "cuda:1"), ("cuda", "cuda"), ("meta", "meta")]
)
@pytest.mark.parametrize("given", [str, torch.device])
def test_a_device_that_can_be_loaded_to(asked: str, right: str, given: Callable[[str], Any]) -> None:
    assert loadable(given(asked)) == torch.device(right)


def test_one_rank_alone_gathers_what_it_gave() -> None:
    value = object()
    assert SINGLE_PROCESS.gather(value)[0] is value
    assert (SINGLE_PROCESS.index, SINGLE_PROCESS.count) == (0, 1)
    assert merging(SINGLE_PROCESS)(value) is value


MERGING: dict[str, Edit] = {
    "each rank begins with its own": Edit(
        "pipeline.distributed",
        "ranks.gather(accumulator))",
        "(lambda got: got[ranks.index :] + got[: ranks.index])(ranks.gather(accumulator)))",
    ),
    "the last comes first": Edit("pipeline.distributed", "ranks.gather(accumulator))", "ranks.gather(accumulator)[::-1])"),
    "the own one stays": Edit("pipeline.distributed", "ranks.gather(accumulator))", "[accumulator])"),
}


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MERGING)
def test_another_order_of_merging_would_be_noticed(mutant: str) -> None:
    """The numbers above do depend on the order of their sums."""

    class Given:
        count = 3

        def __init__(self, index: int, place: int) -> None:
            self.index, self.place = index, place

        def gather(self, value: Any) -> list[Any]:
            return [accumulators(rank)[self.place] for rank in range(3)]

    def merged(code: Any) -> list[list[Any]]:
        made: Callable[[ProcessGroup], Any] = code.merging
        return [[contents(made(Given(rank, place))(accumulators(rank)[place])) for place in range(4)] for rank in range(3)]

    right, wrong = merged(loaded_with(["pipeline.distributed"])), merged(loaded_with(["pipeline.distributed"], MERGING[mutant]))
    assert_equal(right[0], right[2])
    with pytest.raises(AssertionError):
        assert_equal(right, wrong)
