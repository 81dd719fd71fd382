"""The embedded task learns through verl, whole groups stay whole on one rank and on two, and stock verl splits them."""

import math
from statistics import mean

import pytest

from in_verl.real_run import FUNCTIONS, WHOLE_GROUPS, WITH_A_REFERENCE, RealRun, real_run
from verl_cpu.command import Shape

LONG = Shape(prompts=16, group_size=8, mini_batch_prompts=4, steps=27, learning_rate=4e-4)
SHORT = Shape(ranks=2, prompts=8, group_size=4, mini_batch_prompts=2, steps=3)
MARGIN = 0.08


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> RealRun:
    return real_run(tmp_path_factory.mktemp("one"), LONG, *WHOLE_GROUPS)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> RealRun:
    return real_run(tmp_path_factory.mktemp("two"), SHORT, *WHOLE_GROUPS, *WITH_A_REFERENCE)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> RealRun:
    return real_run(tmp_path_factory.mktemp("stock"), SHORT, stock=True)


@pytest.fixture(scope="module")
def by_functions(tmp_path_factory: pytest.TempPathFactory) -> RealRun:
    shape = SHORT._replace(ranks=1)
    return real_run(tmp_path_factory.mktemp("functions"), shape, *FUNCTIONS)


def rises(rewards: list[float]) -> bool:
    third = len(rewards) // 3
    return mean(rewards[-third:]) > mean(rewards[:third]) + MARGIN


def test_reward_rises(one: RealRun) -> None:
    assert len(one.rewards) == LONG.steps
    assert rises(one.rewards), one.rewards


def test_a_flat_curve_is_noticed() -> None:
    assert not rises([0.3] * LONG.steps)


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_whole_groups_stay_whole(ranks: str, request: pytest.FixtureRequest) -> None:
    run, shape = request.getfixturevalue(ranks), {"one": LONG, "two": SHORT}[ranks]
    steps = shape.steps * shape.prompts // shape.mini_batch_prompts
    assert run.integrity == (steps, 0, shape.steps * shape.prompts, 0)
    assert set(run.column("tokencredit/steps_splitting_groups")) == {0}
    assert set(run.column("tokencredit/optimizer_steps")) == {shape.prompts / shape.mini_batch_prompts}


def test_stock_verl_splits_groups_on_two_ranks(stock: RealRun) -> None:
    assert stock.integrity.optimizer_steps == SHORT.steps * SHORT.prompts // SHORT.mini_batch_prompts
    assert stock.integrity.share > 0.5
    assert not any(name.startswith("tokencredit") for name in stock.finished.metrics[0])


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_credit_reaches_the_optimizer(ranks: str, request: pytest.FixtureRequest) -> None:
    run: RealRun = request.getfixturevalue(ranks)
    assert all(value > 0 and math.isfinite(value) for value in run.column("actor/grad_norm"))
    assert run.column("tokencredit/coefficient_mean") == pytest.approx([1.0] * len(run.rewards), abs=1e-3)
    assert min(run.column("tokencredit/coefficient_std")) > 0.01
    assert all(0.9 < value < 1.1 for value in run.column("actor/ratio_mean"))


@pytest.mark.parametrize("run", ["one", "two", "by_functions"])
def test_the_plug_in_says_once_that_it_is_live(run: str, request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue(run).finished.output.count("the plug-in for verl 0.9.1 is live") == 1


def test_stock_verl_does_not_load_the_plug_in(stock: RealRun) -> None:
    assert "tokencredit: the plug-in" not in stock.finished.output


def test_functions_train_in_verls_own_trainer(by_functions: RealRun) -> None:
    assert len(by_functions.rewards) == SHORT.steps
    assert all(value > 0 and math.isfinite(value) for value in by_functions.column("actor/grad_norm"))
    assert all(0 <= value < 1 for value in by_functions.column("actor/silenced_share"))
    assert by_functions.column("critic/advantages/max") != [0] * SHORT.steps
