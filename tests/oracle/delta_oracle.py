"""DelTA (2605.21467) token by token in plain Python: explicit vectors, explicit distances, no identity, no tensor."""

import math
from collections.abc import Sequence
from typing import NamedTuple

EPS = 1e-8

Vector = list[float]
Matrix = list[Vector]


class Rollouts(NamedTuple):
    """Nested lists, one row per response."""

    logp: Matrix
    hidden: list[Matrix]
    advantage: Vector
    mask: list[list[bool]]
    group: list[int]
    tokens: list[list[int]]
    head: Matrix


class Knobs(NamedTuple):
    lam_min: float = 0.8
    lam_max: float = 1.2
    refinements: int = 1
    scope: str = "batch"
    shards: int = 2
    proxy: str = "row"
    top_k: int = 32
    sampling_temperature: float = 1.0
    score: str = "contrast"
    assignment: str = "soft"
    coefficient_map: str = "bounded"
    normalize: bool = True
    gamma_scale: float = 1.0
    fixed_temperature: tuple[float, float, float] | None = None


class Token(NamedTuple):
    row: int
    column: int
    advantage: float
    vector: Vector


class Twin(NamedTuple):
    coefficient: Matrix
    temperatures: list[tuple[float, float, float]]
    """(positive, negative, pooled) of every scope that had two sides."""


def delta_oracle(rollouts: Rollouts, knobs: Knobs) -> Twin:
    scopes: dict[int, list[Token]] = {}
    for row, valid in enumerate(rollouts.mask):
        scope = {"batch": 0, "group": rollouts.group[row], "shard": row % knobs.shards}[knobs.scope]
        for column, is_valid in enumerate(valid):
            if is_valid:
                token = Token(row, column, rollouts.advantage[row], proxy_vector(rollouts, row, column, knobs))
                scopes.setdefault(scope, []).append(token)
    coefficient = [[0.0] * len(valid) for valid in rollouts.mask]
    temperatures = []
    for _, tokens in sorted(scopes.items()):
        values, temperature = coefficients_of_scope(tokens, knobs)
        for token, value in zip(tokens, values, strict=True):
            coefficient[token.row][token.column] = value
        if temperature is not None:
            temperatures.append(temperature)
    return Twin(coefficient, temperatures)


def coefficients_of_scope(tokens: list[Token], knobs: Knobs) -> tuple[Vector, tuple[float, float, float] | None]:
    if not any(token.advantage > 0 for token in tokens) or not any(token.advantage < 0 for token in tokens):
        return [1.0] * len(tokens), None
    centroids = side_centroids(tokens, [1.0] * len(tokens))
    margins = [own_margin(token, *centroids, knobs) for token in tokens]
    temperature = temperatures_of(tokens, margins, knobs)
    for _ in range(knobs.refinements):
        assigned = [assign(token, margin, temperature, knobs) for token, margin in zip(tokens, margins, strict=True)]
        refined = side_centroids(tokens, assigned)
        lagged = temperatures_of(tokens, margins, knobs)
        centroids, temperature = refined, lagged
        margins = [own_margin(token, *centroids, knobs) for token in tokens]
    scores = [final_score(token, margin, temperature, knobs) for token, margin in zip(tokens, margins, strict=True)]
    return map_and_normalise(scores, knobs), temperature


def side_centroids(tokens: list[Token], assigned: Vector) -> tuple[Vector, Vector]:
    return side_centroid(tokens, assigned, +1), side_centroid(tokens, assigned, -1)


def side_centroid(tokens: list[Token], assigned: Vector, side: int) -> Vector:
    mass = 0.0
    summed = [0.0] * len(tokens[0].vector)
    for token, share in zip(tokens, assigned, strict=True):
        if side * token.advantage > 0:
            weight = abs(token.advantage) * share
            mass += weight
            for axis, component in enumerate(token.vector):
                summed[axis] += weight * component
    return [component / max(mass, EPS) for component in summed]


def own_margin(token: Token, positive: Vector, negative: Vector, knobs: Knobs) -> float:
    own, other = (positive, negative) if token.advantage > 0 else (negative, positive)
    if knobs.score == "own-side":
        return -squared_distance(token.vector, own)
    return squared_distance(token.vector, other) - squared_distance(token.vector, own)


def temperatures_of(tokens: list[Token], margins: Vector, knobs: Knobs) -> tuple[float, float, float]:
    if knobs.fixed_temperature is not None:
        return knobs.fixed_temperature
    positive, negative, contrasts = [], [], []
    for token, margin in zip(tokens, margins, strict=True):
        if token.advantage > 0:
            positive.append(margin)
            contrasts.append(margin)
        if token.advantage < 0:
            negative.append(margin)
            contrasts.append(-margin)
    scale = knobs.gamma_scale
    return scale * floored_deviation(positive), scale * floored_deviation(negative), scale * floored_deviation(contrasts)


def floored_deviation(values: Vector) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(max(sum((value - mean) ** 2 for value in values) / len(values), EPS))


def assign(token: Token, margin: float, temperature: tuple[float, float, float], knobs: Knobs) -> float:
    if knobs.assignment == "hard":
        return 1.0 if margin > 0 else 0.0
    return sigmoid(margin / (temperature[0] if token.advantage > 0 else temperature[1]))


def final_score(token: Token, margin: float, temperature: tuple[float, float, float], knobs: Knobs) -> float:
    if token.advantage == 0:
        return 0.0
    if knobs.coefficient_map != "symmetric":
        return assign(token, margin, temperature, knobs)
    # Half-way between the sides counts nothing, either extreme counts in full; the side a token came from is not asked.
    belongs = (1.0 if margin > 0 else 0.0) if knobs.assignment == "hard" else sigmoid(margin / temperature[2])
    return abs(2 * belongs - 1)


def map_and_normalise(scores: Vector, knobs: Knobs) -> Vector:
    low, high = (0.0, 1.0) if knobs.coefficient_map == "raw" else (knobs.lam_min, knobs.lam_max)
    mapped = [low + (high - low) * score for score in scores]
    if not knobs.normalize:
        return mapped
    mass = max(sum(mapped), EPS)
    return [value * len(mapped) / mass for value in mapped]


def proxy_vector(rollouts: Rollouts, row: int, column: int, knobs: Knobs) -> Vector:
    hidden, token, head = rollouts.hidden[row][column], rollouts.tokens[row][column], rollouts.head
    if knobs.proxy == "row":
        surprise = 1 - math.exp(rollouts.logp[row][column])
        return [surprise * component for component in hidden]
    logits = [sum(w * x for w, x in zip(head_row, hidden, strict=True)) / knobs.sampling_temperature for head_row in head]
    if knobs.proxy == "hidden-gradient":
        likeliest = sorted(range(len(head)), key=lambda index: -logits[index])[: knobs.top_k]
        vector = list(head[token])
        for index, probability in zip(likeliest, softmax([logits[index] for index in likeliest]), strict=True):
            for axis, component in enumerate(head[index]):
                vector[axis] -= probability * component
        return vector
    matrix = [[((index == token) - probability) * component for component in hidden] for index, probability in enumerate(softmax(logits))]
    return [component for matrix_row in matrix for component in matrix_row]


def squared_distance(one: Sequence[float], two: Sequence[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, two, strict=True))


def sigmoid(value: float) -> float:
    return 0.5 * (1 + math.tanh(value / 2))


def softmax(logits: Vector) -> Vector:
    powers = [math.exp(logit - max(logits)) for logit in logits]
    return [power / sum(powers) for power in powers]
