"""Run by `test_delta_fused` in a process of its own, under Triton's interpreter: how far the fused path is from DelTA's plain twin."""

import importlib.util
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from laws.delta_cases import make_case
from tokencredit.credit import CreditInputs, delta_coefficients
from tokencredit.credit.delta import discriminate, dispatch
from tokencredit.credit.delta.accumulators import Temperature
from tokencredit.credit.delta.algorithm import DeltaOptions
from tokencredit.credit.delta.dispatch import DeltaBatch, batched_coefficients
from tokencredit.credit.features import DeviceFeatures, HostFeatures, RecomputedFeatures, cut

ROWS = {"MINE": 4, "OTHERS": 4, "COLUMNS": 4}
SCORES = {"COLUMNS": 4, "DOT_LANES": 4, "DOT_COLUMNS": 2, "SUM_TILES": 1, "SUM_COLUMNS": 4, "SPLITS": 2, "AT_ONCE": 2, "OTHERS": 4}
"""Blocks so small that every loop is gone through more than once."""
UNREFINED = {"refinements": 0}
VARIANTS: dict[str, dict[str, Any]] = {
    "batch": {"refinements": 2},
    "group": {"scope": "group"},
    "unrefined": UNREFINED,
    "hard": {"assignment": "hard", **UNREFINED},
    "raw": {"coefficient_map": "raw", **UNREFINED},
    "symmetric": {"coefficient_map": "symmetric", "scope": "shard", **UNREFINED},
    "symmetric and hard": {"coefficient_map": "symmetric", "assignment": "hard", **UNREFINED},
    "fixed": {"fixed_temperature": Temperature(0.7, 1.9, 1.1), **UNREFINED},
    "symmetric and fixed": {"coefficient_map": "symmetric", "fixed_temperature": Temperature(0.7, 1.9, 1.1), **UNREFINED},
    "not normalised": {"normalize": False, "gamma_scale": 2.0, **UNREFINED},
    "hidden gradient": {"proxy": "hidden-gradient", "top_k": 3, **UNREFINED},
}


def batch() -> CreditInputs:
    """Ids of groups fall from row to row; the second group has one side."""
    inputs = make_case(3, 6, 1, (0.8, 1.2)).inputs
    advantage = torch.tensor([1.3, -0.4, 0.0, 0.8, 0.6, -0.5])
    return inputs._replace(advantage=advantage, group=torch.tensor([7, 7, 7, 5, 2, 2]))


def given(inputs: CreditInputs, hidden: Any, **knobs: Any) -> Tensor:
    """In float32, as on a GPU."""
    evidence = {"tokens": inputs.tokens, "head": inputs.head.float()}
    return delta_coefficients(inputs.logp.float(), hidden, inputs.advantage, inputs.mask, inputs.group, **evidence, **knobs).double()


def exact(inputs: CreditInputs, **knobs: Any) -> Tensor:
    """The plain twin in float64, on the numbers that the kernels see."""
    seen = inputs._replace(logp=inputs.logp.float().double(), hidden=inputs.hidden.float().double(), head=inputs.head.float().double())
    evidence = {"tokens": seen.tokens, "head": seen.head}
    return delta_coefficients(seen.logp, seen.hidden, seen.advantage, seen.mask, seen.group, **evidence, **knobs)


def gap(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max().nan_to_num(nan=9.0))


def of_variant(**knobs: Any) -> float:
    inputs = batch()
    return gap(given(inputs, DeviceFeatures(inputs.hidden[inputs.mask].float()), **knobs), exact(inputs, **knobs))


def in_chunks() -> float:
    """Wherever they come from, and bit for bit the same."""
    inputs = batch()
    packed = inputs.hidden[inputs.mask].float()
    again = RecomputedFeatures(lambda run: packed[run].clone(), cut(len(packed), 11), packed.shape[1])
    one, two = (given(inputs, place, refinements=0) for place in (HostFeatures(packed, torch.device("cpu"), chunk=11), again))
    return gap(one, exact(inputs, refinements=0)) + float(not torch.equal(one, two))


def padded() -> float:
    """The first columns of a wider array, NaN where no token is; bit for bit as packed."""
    inputs = batch()
    states = inputs.hidden.bfloat16()
    wider = torch.full((len(states), states.shape[1] + 2, states.shape[2]), torch.nan, dtype=torch.bfloat16)
    wider[:, : states.shape[1]] = states.where(inputs.mask[..., None], torch.nan)
    found = given(inputs, wider[:, : states.shape[1]], refinements=0)
    same = torch.equal(found, given(inputs, DeviceFeatures(states[inputs.mask]), refinements=0))
    return gap(found, exact(inputs._replace(hidden=states.double()), refinements=0)) + float(not same)


def unread() -> float:
    """Tokens that decide nothing: those of zero advantage and of the group with one side."""
    inputs = batch()
    hidden = inputs.hidden.where(((inputs.advantage != 0) & (inputs.group != 5))[:, None, None], torch.nan)
    knobs = {"scope": "group", **UNREFINED}
    return gap(given(inputs, DeviceFeatures(hidden[inputs.mask].float()), **knobs), exact(inputs, **knobs))


def temperatures() -> float:
    inputs = batch()
    evidence = {"tokens": None, "head": None, "sampling_temperature": 1.0}
    known = inputs.advantage, inputs.mask, inputs.group, DeltaOptions(scope="group", refinements=0)
    packed = DeviceFeatures(inputs.hidden[inputs.mask].float())
    found = discriminate(inputs.logp.float(), packed, *known, **evidence).temperatures
    expected = discriminate(inputs.logp.float().double(), inputs.hidden.float().double(), *known, **evidence).temperatures
    return gap(torch.tensor(list(found)), torch.tensor(list(expected)))


def of_other_tokens() -> float:
    """Nothing is finite where features are those of another number of tokens."""
    inputs = batch()
    hidden = DeviceFeatures(inputs.hidden[inputs.mask].float()[:-1])
    one = DeltaBatch(inputs.logp.float(), hidden, inputs.advantage, inputs.mask, torch.zeros_like(inputs.group), 1)
    return float(not batched_coefficients(one, DeltaOptions(refinements=0)).coefficient[inputs.mask].isnan().all())


def on_two_ranks(**knobs: Any) -> float:
    """Rows before and after the first, so that a group straddles; the ranks take turns in the interpreter."""
    inputs = batch()
    inboxes = SimpleQueue(), SimpleQueue()

    def run_rank(rank: int) -> Tensor:
        def exchange(accumulator: Any) -> Any:
            inboxes[1 - rank].put(accumulator)
            received = inboxes[rank].get(timeout=20)
            return received.merge(accumulator) if rank else accumulator.merge(received)

        rows = slice(1, None) if rank else slice(0, 1)
        names = ("advantage", "mask", "group", "tokens", "logp", "hidden")
        own = inputs._replace(**{name: getattr(inputs, name)[rows] for name in names})
        return given(own, DeviceFeatures(own.hidden[own.mask].float()), reduce=exchange, **knobs)

    with ThreadPoolExecutor(2) as pool:
        return gap(torch.cat(list(pool.map(run_rank, (0, 1)))), exact(inputs, **knobs))


CASES: dict[str, Callable[[], float]] = {
    **{name: (lambda knobs=knobs: of_variant(**knobs)) for name, knobs in VARIANTS.items()},
    "in chunks": in_chunks,
    "padded": padded,
    "unread": unread,
    "temperatures": temperatures,
    "of other tokens": of_other_tokens,
    "on two ranks": lambda: on_two_ranks(**UNREFINED),
    "groups on two ranks": lambda: on_two_ranks(scope="group"),
}


def load(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def gaps(paths: dict[str, str], only: str | None) -> dict[str, float]:
    """Of every case, or of one, with the three modules at `paths`."""
    rows = load("tokencredit.kernels.delta.triton_layout", paths["rows"])
    scores = load("tokencredit.kernels.delta.triton_scores", paths["scores"])
    fused = load("tokencredit.credit.delta.triton", paths["fused"])
    for module, numbers in ((rows, ROWS), (scores, SCORES)):
        for name, number in numbers.items():
            setattr(module, name, number)
    rows.fill_slots.__kwdefaults__["tile"] = 8
    lock, launch = Lock(), rows.launch

    def one_at_a_time(*arguments: Any, **named: Any) -> None:
        with lock:
            launch(*arguments, **named)

    rows.launch = scores.launch = one_at_a_time
    dispatch.fused_coefficients, dispatch.FusedBatch = fused.fused_coefficients, fused.FusedBatch
    dispatch.fused_scoring = lambda _: (rows, scores)
    return {name: case() for name, case in CASES.items() if only in (None, name)}


if __name__ == "__main__":
    print(json.dumps({name: gaps(paths, only) for name, (paths, only) in json.loads(sys.argv[1]).items()}))
