"""Part `sampling`: a batch of responses, our plain and fast sampler and `generate`, compared with the memory-bandwidth floor."""

from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from tokencredit.lab.speed.timing import Call, Ceilings, allocated, free, in_turns, peak_bytes, ratios, seconds, spread
from tokencredit.lab.speed.workload import (
    Bench,
    Load,
    Result,
    Row,
    Shape,
    Shown,
    build_model,
    forward_flops,
    gib,
    make_batch,
    make_policy,
    ms,
    percent,
    times,
)
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample


def loads(bench: Bench) -> list[Load]:
    return [Load(2, 2, 6, 8)] if bench.small else [Load(32, 8, 64, 128), Load(8, 8, 512, 128)]


class Floor(NamedTuple):
    prefill: float
    step: float
    """Seconds for one token of every row, at the mean length."""

    def whole(self, steps: int) -> float:
        return self.prefill + steps * self.step


def sampling_floor(shape: Shape, load: Load, ceilings: Ceilings, *, element: int) -> Floor:
    """Prompts once per group; then every step reads all weights and the rows' keys and values, and writes and reads logits."""
    prompts = [Row(load.prompt, 1)] * load.groups
    prefill = ceilings.floor(flops=forward_flops(shape, prompts), moved=float(element * (shape.body + shape.head)))
    context = load.prompt + load.response / 2
    cached = 2 * shape.layers * shape.kv_width * load.rows
    moved = element * (shape.body + shape.head + cached * (context + 1) + 2 * load.rows * shape.vocab)
    flops = load.rows * (2.0 * (shape.body + shape.head) + 4.0 * shape.layers * shape.width * context)
    return Floor(prefill, ceilings.floor(flops=flops, moved=moved))


def generating(model: PreTrainedModel, prompts: list[tuple[int, ...]], load: Load, *, static: bool) -> Call:
    """The `generate` of transformers, with every prompt repeated for its group."""
    ids = torch.tensor([prompt for prompt in prompts for _ in range(load.group_size)], device=model.device)
    attention = torch.ones_like(ids)
    knobs: dict[str, Any] = {"cache_implementation": "static"} if static else {}

    @torch.no_grad()
    def call() -> Any:
        generate: Any = model.generate
        return generate(
            input_ids=ids,
            attention_mask=attention,
            max_new_tokens=load.response,
            min_new_tokens=load.response,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
            **knobs,
        )

    return call


class Drawing:
    """Our sampler, with a new seed per call; counts sampled tokens."""

    def __init__(self, policy: Policy, prompts: list[tuple[int, ...]], load: Load, dtype: str) -> None:
        self.policy, self.prompts, self.load, self.dtype = policy, prompts, load, dtype
        self.calls, self.tokens = 0, 0

    def __call__(self) -> None:
        self.calls += 1
        sampled = sample(
            self.policy,
            self.prompts,
            SamplingParams(group_size=self.load.group_size, max_new_tokens=self.load.response, seed=self.calls, dtype=self.dtype),
        )
        self.tokens = int(sampled.rollouts.mask.sum())


def fast_policy(policy: Policy, dtype: str) -> Policy | str:
    """The policy with the fast sampler, or the reason why it is unsupported."""
    from tokencredit.rollout.cuda_graph import unsupported_reason
    from tokencredit.rollout.sampler import with_sampler

    reason = unsupported_reason(policy, dtype)
    return with_sampler(policy, "fast", dtype=dtype) if reason is None else reason


def peak_with(call: Call, resident: int, device: torch.device) -> int | None:
    """Peak bytes of a call, including caches and graphs held between calls, without the weights."""
    free(device)
    peak = peak_bytes(call, device, before=allocated(device))
    return None if peak is None else peak + resident


STATIC = "generate static, compiled"


def measure_load(bench: Bench, shape: Shape, load: Load) -> Result:
    bench.report(f"sampling: {shape.name}, {load.rows} rows, {load.prompt} + {load.response} tokens")
    batch = make_batch(shape, load, device=bench.device, seed=bench.seed, even=True)
    prompts = list(dict.fromkeys(batch.rollouts.prompts))
    theirs = build_model(shape, device=bench.device, positions=load.positions, seed=bench.seed, dtype=bench.torch_dtype)
    policy = replace(make_policy(shape, device=bench.device, positions=load.positions, seed=bench.seed), sampler=None)
    fast = fast_policy(policy, bench.dtype)
    calls: dict[str, Call] = {
        "generate": generating(theirs, prompts, load, static=False),
        STATIC: generating(theirs, prompts, load, static=True),
        "ours plain": Drawing(policy, prompts, load, bench.dtype),
    }
    if isinstance(fast, Policy):
        calls["ours fast"] = Drawing(fast, prompts, load, bench.dtype)
    left_out = {"ours fast": fast} if isinstance(fast, str) else {}
    if load != loads(bench)[0]:
        calls.pop(STATIC)
        left_out[STATIC] = "recompiles for every size, which is slow; only the first size is measured"
    ready: dict[str, Call] = {}
    resident: dict[str, int] = {}
    first: dict[str, float] = {}
    for name, call in calls.items():
        free(bench.device)
        before = allocated(bench.device)
        try:
            first[name] = seconds(call, bench.device)
            free(bench.device)
            ready[name], resident[name] = call, allocated(bench.device) - before
            bench.report(f"  {name}: first call {ms(first[name])}")
        except Exception as problem:  # a compiler failure must not stop the others
            left_out[name] = f"{type(problem).__name__}: {str(problem)[:200]}"
            bench.report(f"  {name}: {left_out[name]}")
    taken = in_turns(ready, bench.device, repeats=bench.repeats, warm_up=1)
    peaks = {name: peak_with(call, resident[name], bench.device) for name, call in ready.items()}
    floor = sampling_floor(shape, load, bench.ceilings, element=2 if bench.dtype == "bfloat16" else 4)
    whole = load.rows * load.response
    rows = {}
    for name, values in taken.items():
        call = ready[name]
        tokens = call.tokens if isinstance(call, Drawing) else whole
        rows[name] = {
            "seconds": spread(values),
            "compile_seconds": max(0.0, first[name] - median(values)),
            "tokens": tokens,
            "tokens_per_second": spread([tokens / value for value in values]),
            "seconds_per_token_step": spread([value / load.response for value in values]),
            "share_of_floor": spread([floor.whole(load.response) / value for value in values]),
            "peak_bytes": peaks[name],
            "generate_over_it": ratios(taken["generate"], values) if "generate" in taken else None,
        }
    return {
        "shape": shape._asdict(),
        "load": load._asdict(),
        "floor_seconds": floor._asdict() | {"whole": floor.whole(load.response)},
        "contenders": rows,
        "left_out": left_out,
    }


def measure(bench: Bench) -> Result:
    found = []
    for load in loads(bench):
        found.append(measure_load(bench, bench.shapes[0], load))
        free(bench.device)
    return {
        "what": "responses of full length to groups of prompts; seconds per token step are of the whole call, prompts included",
        "floor": "prompts once per group, then per step weights + keys and values read + logits written and read, over bandwidth "
        "(or FLOPs over peak where that is longer)",
        "runs": found,
    }


def show(result: Result) -> list[Shown]:
    tables = []
    for run in result["runs"]:
        load = run["load"]
        size = f"{load['groups']} x {load['group_size']} rows, {load['prompt']} + {load['response']} tokens"
        rows = [
            (
                name,
                ms(row["seconds"]["median"]),
                ms(row["seconds_per_token_step"]["median"]),
                f"{row['tokens_per_second']['median']:,.0f}",
                percent(row["share_of_floor"]["median"]),
                gib(row["peak_bytes"]),
                times(row["generate_over_it"]),
            )
            for name, row in run["contenders"].items()
        ]
        whole = run["floor_seconds"]["whole"]
        rows.append(("floor", ms(whole), ms(whole / load["response"]), "", "100 %", "", ""))
        tables.append(
            Shown(
                f"sampling: {run['shape']['name']}, {size}",
                ("", "whole call", "per token step", "tokens/s", "of floor", "peak", "generate takes"),
                rows,
                tuple(f"{name} is left out: {why}" for name, why in run["left_out"].items()),
            )
        )
    return tables
