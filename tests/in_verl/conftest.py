"""One thread and verl on a CPU, imported here: what it warns of while it is imported is not ours to fail on."""

import os
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING
from unittest.mock import patch

from verl_cpu.command import Shape, environment

os.environ.update(environment())

import pytest
import torch

from conformance.compare import LARGEST

if TYPE_CHECKING:
    from in_verl.stored_run import Workers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import verl
    import verl.trainer.main_ppo
    import verl.workers.engine_workers  # noqa: F401
    from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead

torch.set_num_threads(1)
SHAPE = Shape(prompts=8, group_size=4, mini_batch_prompts=2)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def workers(one_rank: None, tmp_path_factory: pytest.TempPathFactory) -> "Workers":
    """One worker of verl with our engine, to be started again by each test."""
    from in_verl.stored_run import as_rank_0, hydra_config

    return as_rank_0(hydra_config(tmp_path_factory.mktemp("worker"), SHAPE))


@pytest.fixture(scope="session")
def stock_workers(one_rank: None, tmp_path_factory: pytest.TempPathFactory) -> "Workers":
    """The same with verl's own engine, as in a process where the plug-in is not loaded."""
    from in_verl.stored_run import as_rank_0, hydra_config

    with patch.object(EngineRegistry, "get_engine_cls", return_value=FSDPEngineWithLMHead):
        return as_rank_0(hydra_config(tmp_path_factory.mktemp("stock"), SHAPE), FSDPEngineWithLMHead)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section(f"largest difference between verl {version('verl')} and the local engine")
    for name, difference in LARGEST.items():
        terminalreporter.write_line(f"{difference:9.1e}  {name}")
