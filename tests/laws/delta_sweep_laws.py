"""What holds of DelTA swept from stored features beyond the laws of any DelTA; each law names wrong versions that it must reject."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from laws.delta_cases import Case, Law, assert_near, make_case
from tokencredit.credit import CreditInputs
from tokencredit.credit.features import DeviceFeatures, HostFeatures, RecomputedFeatures, cut
from tokencredit.kernels.delta import reference

CPU = torch.device("cpu")


def swept(delta: SimpleNamespace, inputs: CreditInputs, hidden: Any = None, **knobs: Any) -> Tensor:
    """Coefficients from a source; packed features on the device unless another is given."""
    hidden = DeviceFeatures(inputs.hidden[inputs.mask]) if hidden is None else hidden
    evidence = {"tokens": inputs.tokens, "head": inputs.head}
    return delta.delta_coefficients(inputs.logp, hidden, inputs.advantage, inputs.mask, inputs.group, **evidence, **knobs)


def law_the_plain_twin_agrees(delta: SimpleNamespace, case: Case) -> None:
    for proxy in ("row", "hidden-gradient", "head"):
        for knobs in ({"refinements": 3}, {"scope": "group"}, {"score": "own-side"}, {"coefficient_map": "symmetric"}):
            knobs = {**case.knobs, **knobs, "proxy": proxy, "top_k": 3}
            assert_near(swept(delta, case.inputs, **knobs), swept(delta, case.inputs, case.inputs.hidden, **knobs))


def law_scopes_with_one_side_do_not_count_in_others(delta: SimpleNamespace, case: Case) -> None:
    """Three responses hold one scope with two sides at most, and it need not be the only scope."""
    few = make_case(int(torch.randint(99, (), generator=case.draw)), 3, 1, (0.8, 1.2)).inputs
    few = few._replace(advantage=(few.advantage.abs() + 0.1) * torch.tensor([1.0, 1.0, -1.0]), mask=few.mask | (torch.arange(5) == 1))
    assert_near(swept(delta, few, scope="shard"), swept(delta, few, few.hidden, scope="shard"))


def law_where_features_are_does_not_matter(delta: SimpleNamespace, case: Case) -> None:
    """Bit for bit when they come in the same chunks, and nearly so in others."""
    packed = case.inputs.hidden[case.inputs.mask]
    for knobs in ({}, {"scope": "group"}, {"proxy": "head"}):
        whole = swept(delta, case.inputs, **knobs, **case.knobs)
        places = (
            DeviceFeatures(packed, chunk=5),
            HostFeatures(packed, CPU, chunk=5),
            RecomputedFeatures(lambda run: packed[run].clone(), cut(len(packed), 5), packed.shape[1]),
        )
        found = [swept(delta, case.inputs, place, **knobs, **case.knobs) for place in places]
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
        assert_near(found[0], whole)


def law_padded_and_packed_states_give_the_same_bits(delta: SimpleNamespace, case: Case) -> None:
    states = case.inputs.hidden.bfloat16()
    packed = DeviceFeatures(states[case.inputs.mask])
    nowhere = states.where(case.inputs.mask[..., None], torch.nan)
    wider = torch.cat([nowhere, nowhere], 1)[:, : nowhere.shape[1]]
    for knobs in ({}, {"scope": "group"}):
        expected = swept(delta, case.inputs, packed, **knobs, **case.knobs)
        assert torch.equal(swept(delta, case.inputs, nowhere, **knobs, **case.knobs), expected)
        assert torch.equal(swept(delta, case.inputs, wider, **knobs, **case.knobs), expected)


def law_tokens_that_decide_nothing_are_never_read(delta: SimpleNamespace, case: Case) -> None:
    """Those of zero advantage, and in group scope those of groups with one side."""
    inputs = case.inputs
    for scope in ("batch", "group"):
        unread = inputs.advantage == 0
        if scope == "group":
            for group in inputs.group.unique():
                own = (inputs.group == group) & inputs.mask.any(1)
                unread |= (inputs.group == group) & ~((inputs.advantage[own] > 0).any() & (inputs.advantage[own] < 0).any())
        hidden = inputs.hidden.where(~unread[:, None, None], torch.nan)
        expected = swept(delta, inputs, scope=scope, **case.knobs)
        assert torch.equal(swept(delta, inputs._replace(hidden=hidden), scope=scope, **case.knobs), expected)


class Watch(TorchDispatchMode):
    """Notes operations whose answer the host must wait for, and the largest array any operation makes."""

    WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "bincount", "repeat_interleave.Tensor")

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = str(func).removeprefix("aten.")
        by_mask = name.startswith("index") and any(tensor.dtype == torch.bool for tensor in indices(args))
        if by_mask or any(name == wait or name.startswith((f"{wait}.", f"{wait}_")) for wait in self.WAITS):
            self.waits.append(name)
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.largest = max(self.largest, out.numel() * out.element_size())
        return out


def indices(args: tuple[Any, ...]) -> Iterator[Tensor]:
    lists = [argument for argument in args[1:] if isinstance(argument, (list, tuple))]
    return (tensor for each in lists for tensor in each if isinstance(tensor, Tensor))


def law_nothing_is_asked_of_the_device(delta: SimpleNamespace, case: Case) -> None:
    """By the row proxy on one rank, until somebody reads the temperatures."""
    inputs = case.inputs
    padded = inputs.hidden.bfloat16()
    rows = torch.arange(len(inputs.mask))
    scopes = {"batch": (torch.zeros_like(rows), 1), "group": (inputs.group, len(rows)), "shard": (rows % 3, 3)}
    places = padded, DeviceFeatures(padded[inputs.mask]), HostFeatures(padded[inputs.mask], CPU, chunk=4)
    variants = {}, {"coefficient_map": "symmetric"}, {"score": "own-side"}
    for (name, (scope, most)), hidden, knobs in zip(scopes.items(), places, variants, strict=True):
        batch = delta.DeltaBatch(inputs.logp, hidden, inputs.advantage, inputs.mask, scope, most)
        with Watch() as watch:
            found = delta.batched_coefficients(batch, delta.DeltaOptions(scope=name, **knobs, **case.knobs))
        assert watch.waits == []
        with watch:
            list(found.temperatures)
        asked = len(watch.waits)
        with watch:
            list(found.temperatures)
        assert asked == len(watch.waits) > 0


def law_memory_is_bounded_by_blocks_and_chunks(delta: SimpleNamespace, case: Case) -> None:
    """However large the features, no array is larger than a block, and no chunk is asked for more often than there are sweeps."""
    rows, tokens, width, chunk = 16, 64, 64, 256
    mask = torch.ones(rows, tokens, dtype=torch.bool)
    advantage = torch.randn(rows, generator=case.draw, dtype=torch.float64)
    logp = -torch.rand(rows, tokens, generator=case.draw, dtype=torch.float64)
    features = torch.randn(rows * tokens, width, generator=case.draw).bfloat16()
    alive: list[int] = []

    def recompute(run: slice) -> Tensor:
        alive.append(run.stop - run.start)
        return features[run].clone()

    before = reference.BLOCK_ELEMENTS
    reference.BLOCK_ELEMENTS = 2048
    try:
        recomputed = RecomputedFeatures(recompute, cut(len(features), chunk), width)
        for hidden in (DeviceFeatures(features), recomputed, features.view(rows, tokens, width)):
            batch = delta.DeltaBatch(logp, hidden, advantage, mask, torch.zeros(rows, dtype=torch.long), 1)
            with Watch() as watch:
                delta.batched_coefficients(batch, delta.DeltaOptions(**case.knobs))
            # A tile in float64 is the least that is worked on.
            assert watch.largest <= 8 * delta.TILE * width
        assert set(alive) == {chunk}
        assert len(alive) == 2 * (1 + case.knobs["refinements"]) * len(features) // chunk
    finally:
        reference.BLOCK_ELEMENTS = before


def law_moments_may_be_merged_in_any_order(delta: SimpleNamespace, case: Case) -> None:
    values = torch.randn(9, generator=case.draw, dtype=torch.float64)

    def moments(part: Tensor) -> Any:
        mean = part.mean() if len(part) else part.sum()
        return delta.SideMoments(torch.full((1,), len(part)).double(), mean[None], (part - mean).square().sum()[None])

    one, two, three = (moments(part) for part in values.tensor_split([0, 3]))
    for merged in (one.merge(two).merge(three), three.merge(two.merge(one)), two.merge(three).merge(one)):
        assert_near(tuple(merged), tuple(moments(values)))


SWEEP_LAWS: dict[Law, list[str]] = {
    law_the_plain_twin_agrees: [
        "one centroid's share of the offset",
        "offset of the same sign for both sides",
        "temperature of the margins judged",
        "own side without norms",
        "symmetric map at each side's own temperature",
        "pooled temperature of unturned margins",
        "sides share one mass",
        "empty slots of the head have products",
        "a constant temperature",
        "row proxy without confidence",
        "hidden gradient of all tokens",
    ],
    law_scopes_with_one_side_do_not_count_in_others: ["the only bound is the only scope"],
    law_where_features_are_does_not_matter: ["a chunk replaces the sum before it", "places of other tokens", "chunks of a scope forgotten"],
    law_moments_may_be_merged_in_any_order: ["merged means unweighted", "merged deviations forget the gap"],
    law_padded_and_packed_states_give_the_same_bits: ["padded states in rows as wide as the mask"],
    law_tokens_that_decide_nothing_are_never_read: ["zero advantage is laid out"],
    law_nothing_is_asked_of_the_device: ["scopes are counted", "tokens are picked by a mask", "temperatures are read at once"],
    law_memory_is_bounded_by_blocks_and_chunks: ["all features are copied", "temperatures cost a sweep"],
}
