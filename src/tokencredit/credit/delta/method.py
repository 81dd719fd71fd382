"""DelTA as a credit method: choose the form, run it on every scope, and keep temperature and momentum in the state.

Steps and defaults follow the published algorithm (2605.21467); its ablations, and what the paper leaves open, are options. Features
come from the forward pass that computes the old log-probs, so DelTA adds none.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokencredit.credit.base import CreditInputs, CreditOutcome, State, check_state_size, decode_tensor, encode_tensor, scale_advantage
from tokencredit.credit.delta.accumulators import MeanDirection, ScopeIds, Temperature
from tokencredit.credit.delta.algorithm import (
    Assignment,
    CoefficientMap,
    DeltaOptions,
    Proxy,
    Reduce,
    Scope,
    Score,
    scope_coefficients,
    this_rank_only,
)
from tokencredit.credit.delta.dispatch import DeltaBatch, batched_coefficients, uses_batched_form
from tokencredit.credit.delta.vectors import (
    DenseVectors,
    HeadVectors,
    TokenVectors,
    check_head_explains_logp,
    hidden_gradient_vectors,
    row_vectors,
    valid_features,
)
from tokencredit.kernels import at_least_float32
from tokencredit.types import FeatureSource

TemperatureMode = Literal["adaptive", "first-batch", "constant"]


class TokenFeatures(NamedTuple):
    """Inputs of a proxy vector, for valid tokens only."""

    logp: Float[Tensor, " tok"]
    hidden: Float[Tensor, "tok hid"]
    tokens: Int[Tensor, " tok"] | None
    head: Float[Tensor, "vocab hid"] | None
    sampling_temperature: float


def _token_vectors(features: TokenFeatures, options: DeltaOptions) -> TokenVectors:
    logp, hidden, tokens, head, temperature = features
    if options.proxy == "row":
        return row_vectors(logp, hidden)
    assert tokens is not None
    assert head is not None
    hidden, head = at_least_float32(hidden), at_least_float32(head)
    check_head_explains_logp(logp[:64], hidden[:64], tokens[:64], head, temperature)
    if options.proxy == "hidden-gradient":
        return hidden_gradient_vectors(hidden, tokens, head, temperature=temperature, top_k=options.top_k)
    return HeadVectors(hidden, tokens, head, temperature)


def _scope_of_rows(options: DeltaOptions, mask: Tensor, group: Tensor | None) -> Int[Tensor, " seq"]:
    rows = torch.arange(mask.shape[0], device=mask.device)
    if options.scope == "batch":
        return torch.zeros_like(rows)
    if options.scope == "shard":
        return rows % options.shards
    if group is None:
        raise ValueError("scope is 'group' but group is None; give the group of each response")
    return group


def _check_shapes(logp: Tensor, hidden: Tensor | FeatureSource, advantage: Tensor, mask: Tensor, group: Tensor | None) -> None:
    shape = (*mask.shape, hidden.width) if not isinstance(hidden, Tensor) else tuple(hidden.shape)
    if logp.shape != mask.shape or shape[:2] != mask.shape:
        raise ValueError(f"logp is {tuple(logp.shape)}, hidden {shape} and mask {tuple(mask.shape)}; their first two axes must agree")
    if not isinstance(hidden, Tensor) and not mask.is_cuda and len(hidden) != int(mask.sum()):
        raise ValueError(f"hidden holds {len(hidden)} tokens but mask {int(mask.sum())}; they must be the same")
    for name, rows in (("advantage", advantage), ("group", group)):
        if rows is not None and rows.shape != mask.shape[:1]:
            raise ValueError(f"{name} holds {rows.numel()} responses but mask holds {mask.shape[0]}; they must be the same")


def _check_head(proxy: Proxy, width: int, tokens: Tensor | None, head: Tensor | None) -> None:
    if proxy == "row":
        return
    if tokens is None or head is None:
        raise ValueError(f"proxy {proxy!r} needs tokens (the sampled ids) and head (the LM-head weight)")
    if head.shape[1] != width:
        raise ValueError(f"head has width {head.shape[1]} but hidden has width {width}; they must be the same")


class Discrimination(NamedTuple):
    coefficient: Float[Tensor, "seq tok"]
    temperatures: Sequence[Temperature]
    """Of every two-sided scope."""
    direction: Tensor | None = None
    """Between the first centroids, averaged over scopes with their masses as weights; only with momentum."""


@torch.no_grad()
def discriminate(
    logp: Float[Tensor, "seq tok"],
    hidden: Float[Tensor, "seq tok hid"] | FeatureSource,
    advantage: Float[Tensor, " seq"],
    mask: Bool[Tensor, "seq tok"],
    group: Int[Tensor, " seq"] | None,
    options: DeltaOptions,
    *,
    tokens: Int[Tensor, "seq tok"] | None,
    head: Float[Tensor, "vocab hid"] | None,
    sampling_temperature: float,
) -> Discrimination:
    """Run the discriminator over every scope; coefficients are 0 outside the mask.

    Features in half precision, on a GPU or from a `FeatureSource` use the batched form, without a copy; float32 features on the CPU,
    and any features with momentum, are copied for the plain form.
    """
    options.check()
    _check_shapes(logp, hidden, advantage, mask, group)
    if tokens is not None and tokens.shape != mask.shape:
        raise ValueError(f"tokens is {tuple(tokens.shape)} but mask is {tuple(mask.shape)}; they must be the same")
    width = hidden.shape[-1] if isinstance(hidden, Tensor) else hidden.width
    _check_head(options.proxy, width, tokens, head)
    scope = _scope_of_rows(options, mask, group)
    if options.momentum:
        shape = (width,) if options.proxy != "head" or head is None else tuple(head.shape)
        check_state_size(shape, f"momentum's direction with proxy {options.proxy!r}", "use proxy 'hidden-gradient' or 'row', or momentum 0")
    batched = uses_batched_form(hidden) and not options.momentum
    if batched and options.score != "random":
        max_scopes = {"batch": 1, "shard": options.shards, "group": len(mask)}[options.scope]
        batch = DeltaBatch(logp, hidden, advantage, mask, scope, max_scopes, tokens, head, sampling_temperature)
        return Discrimination(*batched_coefficients(batch, options))
    if batched:
        # Random scores need only the number of vectors.
        vectors: TokenVectors = DenseVectors(logp.new_zeros(int(mask.sum()), 1))
    else:
        features = TokenFeatures(
            logp[mask], valid_features(hidden, mask), None if tokens is None else tokens[mask], head, sampling_temperature
        )
        vectors = _token_vectors(features, options)
    row_of_token = mask.nonzero()[:, 0]
    token_advantage = advantage.double()[row_of_token]
    token_scope = scope[row_of_token]
    coefficient = torch.ones_like(token_advantage)
    temperatures: list[Temperature] = []
    directions = MeanDirection()
    for scope_id in options.reduce(ScopeIds().add(token_scope)).finish():
        members = (token_scope == scope_id).nonzero()[:, 0]
        in_scope = vectors if len(members) == len(vectors) else vectors.take(members)
        # Knuth's multiplier gives neighbouring scopes unrelated random streams.
        result = scope_coefficients(
            in_scope, token_advantage[members], options._replace(seed=(options.seed + 2654435761 * scope_id) % 2**63)
        )
        coefficient[members] = result.coefficient
        temperatures += [] if result.temperature is None else [result.temperature]
        if options.momentum and result.first is not None:
            directions.add(result.first.direction, result.mass)
    padded = torch.zeros_like(at_least_float32(logp))
    padded[mask] = coefficient.to(padded.dtype)
    return Discrimination(padded, temperatures, directions.finish())


def delta_coefficients(
    logp: Float[Tensor, "seq tok"],
    hidden: Float[Tensor, "seq tok hid"] | FeatureSource,
    advantage: Float[Tensor, " seq"],
    mask: Bool[Tensor, "seq tok"],
    group: Int[Tensor, " seq"] | None = None,
    *,
    lam_min: float = 0.8,
    lam_max: float = 1.2,
    refinements: int = 1,
    scope: Scope = "batch",
    shards: int = 2,
    proxy: Proxy = "row",
    tokens: Int[Tensor, "seq tok"] | None = None,
    head: Float[Tensor, "vocab hid"] | None = None,
    top_k: int = 32,
    sampling_temperature: float = 1.0,
    score: Score = "contrast",
    assignment: Assignment = "soft",
    coefficient_map: CoefficientMap = "bounded",
    normalize: bool = True,
    gamma_scale: float = 1.0,
    fixed_temperature: Temperature | None = None,
    seed: int = 0,
    reduce: Reduce = this_rank_only,
) -> Float[Tensor, "seq tok"]:
    """DelTA's per-token coefficients (2605.21467): mean 1 over a scope's tokens, no gradient, 0 outside the mask.

    `hidden` is the LM head's input where each token is predicted, or a source of it for the packed valid tokens. A scope in which
    one side has no mass gets 1 everywhere (our reading). `reduce` merges an accumulator over ranks; then the result does not
    depend on the rank of a response, except with scope "shard", which cuts by it, and with random scores, which need a
    different seed on each rank.
    """
    options = DeltaOptions(
        lam_min=lam_min,
        lam_max=lam_max,
        refinements=refinements,
        scope=scope,
        shards=shards,
        proxy=proxy,
        top_k=top_k,
        score=score,
        assignment=assignment,
        coefficient_map=coefficient_map,
        normalize=normalize,
        gamma_scale=gamma_scale,
        fixed_temperature=fixed_temperature,
        seed=seed,
        reduce=reduce,
    )
    return discriminate(
        logp, hidden, advantage, mask, group, options, tokens=tokens, head=head, sampling_temperature=sampling_temperature
    ).coefficient


def delta_credit(
    inputs: CreditInputs, state: State, *, temperature: TemperatureMode = "adaptive", constant_gamma: float = 1.0, **knobs: Any
) -> CreditOutcome:
    """a_it = c_it A_i with DelTA's coefficients; `knobs` are fields of DeltaOptions.

    Temperature "first-batch" keeps the first measured one in the state. With momentum the state holds the direction averaged over
    steps, past = momentum past + (1 - momentum) new, and the cosine of past and new; a batch without a two-sided scope changes
    neither.
    """
    if inputs.hidden is None:
        raise ValueError("hidden is missing; DelTA needs the LM head's input from the scoring pass")
    fixed = None
    if temperature not in get_args(TemperatureMode):
        raise ValueError(f"temperature is {temperature!r}; it must be one of {', '.join(get_args(TemperatureMode))}")
    if temperature == "constant":
        fixed = Temperature(constant_gamma, constant_gamma, constant_gamma)
    elif temperature == "first-batch" and "temperature" in state:
        fixed = Temperature(*state["temperature"])
    past = decode_tensor(state["direction"]).to(inputs.mask.device) if "direction" in state else None
    options = DeltaOptions(fixed_temperature=fixed, past=past, seed=inputs.seed, **knobs)
    coefficient, measured, direction = discriminate(
        inputs.logp,
        inputs.hidden,
        inputs.advantage,
        inputs.mask,
        inputs.group,
        options,
        tokens=inputs.tokens,
        head=inputs.head,
        sampling_temperature=inputs.temperature,
    )
    if temperature == "first-batch" and fixed is None and measured:
        state = {**state, "temperature": [sum(side) / len(measured) for side in zip(*measured, strict=True)]}
    if direction is not None:
        state = {**state, **_momentum_state(direction, past, options.momentum)}
    return scale_advantage(coefficient, inputs, state)


def _momentum_state(direction: Tensor, past: Tensor | None, momentum: float) -> dict[str, Any]:
    if past is None:
        return {"direction": encode_tensor(direction)}
    agreement = torch.nn.functional.cosine_similarity(direction.flatten(), past.flatten(), dim=0)
    return {"direction": encode_tensor(momentum * past + (1 - momentum) * direction), "direction_agreement": float(agreement)}
