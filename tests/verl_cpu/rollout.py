"""A rollout of verl whose replicas are `HuggingFaceServer`s."""

import os
from collections.abc import Iterable
from typing import Any

import ray
from torch import Tensor
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

from verl_cpu.server import HuggingFaceServer


def _server_name(replica: int) -> str:
    return f"huggingface_server_{replica}"


class HuggingFaceReplica(RolloutReplica):
    """One server for the `tensor_model_parallel_size` ranks of a replica; it holds the whole model."""

    async def launch_servers(self) -> None:
        start = ray.remote(HuggingFaceServer).options(name=_server_name(self.replica_rank), num_cpus=0)
        server = start.remote(self.model_config.path, max_new_tokens=self.config.response_length, seed=self.config.seed)
        self.servers, self._server_handle, self._server_address = [server], server, _server_name(self.replica_rank)

    async def sleep(self) -> None:
        """There is no device memory to free."""

    async def wake_up(self) -> None:
        """Nothing slept."""


class WeightSender(BaseRollout):
    """Lives in a training rank and sends its weights to the server of its replica."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica, self.place = divmod(int(os.environ["RANK"]), self.config.tensor_model_parallel_size)

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], *, global_steps: int | None = None, **_: Any) -> None:
        # Every rank walks through them, because gathering a sharded weight takes all ranks.
        gathered = {name: weight.detach().float().cpu().clone() for name, weight in weights}
        if self.place == 0:
            await ray.get_actor(_server_name(self.replica)).load_weights.remote(gathered, global_steps)
