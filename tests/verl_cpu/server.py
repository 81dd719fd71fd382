"""Answers the generation requests of a step together, with the project's own sampler. Imports no verl: it would take seconds."""

import asyncio
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokencredit.policy.policy import load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample

QUIET_SECONDS = 0.02
"""When no request has come for this long, those that wait are answered."""


class Generated(NamedTuple):
    """The attributes of verl's `TokenOutput`."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str
    extra_fields: dict[str, Any]
    routed_experts: None = None
    num_preempted: None = None


class _Request(NamedTuple):
    prompt: list[int]
    temperature: float
    answer: "asyncio.Future[Generated]"


def _temperature(sampling: dict[str, Any]) -> float:
    if sampling.get("top_p", 1) != 1 or sampling.get("top_k", -1) != -1 or sampling.get("repetition_penalty", 1) != 1:
        raise ValueError(f"sampling parameters {sampling} shape the distribution; this server has only a temperature")
    return float(sampling["temperature"])


class HuggingFaceServer:
    def __init__(self, model: str, *, max_new_tokens: int, seed: int) -> None:
        torch.set_num_threads(1)
        self.policy = load_policy(model, device=torch.device("cpu"), dtype="float32")
        self.max_new_tokens, self.seed = max_new_tokens, seed
        self.version: int | None = None
        self.waiting: list[_Request] = []
        self.serving: asyncio.Task[None] | None = None

    async def load_weights(self, weights: dict[str, Tensor], version: int | None) -> None:
        unmatched = self.policy.model.load_state_dict(weights, strict=False)
        tied = set(self.policy.model.all_tied_weights_keys)
        if unmatched.unexpected_keys or set(unmatched.missing_keys) - tied:
            raise ValueError(f"the actor's weights do not fit the rollout model: {unmatched}")
        self.version = version

    async def generate(self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> Generated:
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append(_Request(list(prompt_ids), _temperature(sampling_params), answer))
        if self.serving is None or self.serving.done():
            self.serving = asyncio.create_task(self._serve())
        return await answer

    async def _serve(self) -> None:
        while self.waiting:
            seen = 0
            while seen < len(self.waiting):
                seen = len(self.waiting)
                await asyncio.sleep(QUIET_SECONDS)
            requests, self.waiting = self.waiting, []
            for temperature in {request.temperature for request in requests}:
                self._answer([request for request in requests if request.temperature == temperature], temperature)

    def _answer(self, requests: list[_Request], temperature: float) -> None:
        self.seed += 1
        try:
            rollouts = sample(
                self.policy,
                [request.prompt for request in requests],
                SamplingParams(
                    group_size=1,
                    max_new_tokens=self.max_new_tokens,
                    seed=self.seed,
                    temperature=temperature or 1.0,
                    greedy=temperature == 0,
                ),
            ).rollouts
        except Exception as problem:
            for request in requests:
                request.answer.set_exception(problem)
            return
        for row, request in enumerate(requests):
            length = int(rollouts.mask[row].sum())
            request.answer.set_result(
                Generated(
                    token_ids=rollouts.tokens[row, :length].tolist(),
                    log_probs=rollouts.behavior_logp[row, :length].tolist(),
                    stop_reason="completed" if bool(rollouts.finished[row]) else "length",
                    extra_fields={"global_steps": self.version},
                )
            )
