"""What must hold for FADE, its probes and its controller, whatever the batch; and the wrong versions each law rejects."""

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from laws.harness import Law, for_all, law_tests_from_edits
from laws.mutants_advantage import CONTROLLER, FOCAL, RESPONSES, advantage_of, advantages_with, inputs_of, of_one_prompt
from tokencredit.advantage import AdvantageInputs

OUTCOMES = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=8)


# --- difficulty and sign


def probes(table, inputs: AdvantageInputs, alpha: float, delta: float) -> list[Tensor]:
    """Everything that should be focal(alpha, delta): FADE held there, and the probe where it reaches."""
    solve_rate, entropy = 3 / (3 + 2 * alpha), 1.0
    held = table["fade"](
        inputs._replace(score=torch.full_like(inputs.reward, solve_rate), entropy=entropy),
        {},
        alpha_max=50.0,
        delta_min=0.01,
        target_entropy=1 + entropy - delta,
        initial_solve_rate=solve_rate,
    )
    assert held.state["alpha"] == pytest.approx(alpha)
    assert held.state["delta"] == pytest.approx(delta)
    found = [held.advantage]
    found += [advantage_of(table, "power", inputs, alpha=alpha)] if delta == 1 else []
    found += [advantage_of(table, "asym", inputs, delta=delta)] if alpha == 1 else []
    return found


@for_all(OUTCOMES, st.sampled_from([1.0, 1.5, 2.0, 3.0]), st.sampled_from([1.0, 0.75, 0.25]))
def masses_of_a_prompt_are_those_of_the_paper(table, outcomes, alpha, delta):
    """The successes of a group sum to G p q^alpha, its failures to minus that over delta, whatever the prompt beside it."""
    inputs = inputs_of([*[(outcome, 6, 1) for outcome in outcomes], (1.0, 40, 1), (1.0, 40, 1), (0.0, 40, 1)])
    of_prompt = inputs.group == 6
    solved = sum(outcomes) / len(outcomes)
    mass = len(outcomes) * solved * (1 - solved) ** alpha
    for advantage in probes(table, inputs, alpha, delta):
        assert float(advantage[of_prompt & (inputs.reward == 1)].sum()) == pytest.approx(mass, abs=1e-9)
        assert float(advantage[of_prompt & (inputs.reward == 0)].sum()) == pytest.approx(-mass / delta, abs=1e-9)


@for_all(RESPONSES)
def without_focus_and_with_equal_signs_it_is_dr_grpo(table, responses):
    """To the bit, solved prompts and rewards above 1 included."""
    inputs = inputs_of(responses)
    expected = advantage_of(table, "dr-grpo", inputs)
    assert torch.equal(advantage_of(table, "fade", inputs, alpha_max=1.0, delta_min=1.0), expected)
    assert torch.equal(advantage_of(table, "power", inputs, alpha=1.0), expected)
    assert torch.equal(advantage_of(table, "power", inputs, alpha=1.0, scale="peak"), expected)
    assert torch.equal(advantage_of(table, "asym", inputs, delta=1.0), expected)


@for_all(RESPONSES, st.sampled_from([0.25, 0.5, 2.0, 3.0]))
def a_solved_prompt_weighs_nothing_unless_focus_is_off(table, responses, alpha):
    inputs = inputs_of(responses)
    result = advantage_of(table, "power", inputs, alpha=alpha)
    assert bool(result.isfinite().all())
    for name in inputs.group.unique():
        rows = (inputs.group == name) & ~inputs.reward.isnan()
        if rows.any() and float(inputs.reward[rows].mean()) >= 1:
            assert not result[rows].any()


@for_all(st.sampled_from([0.5, 1.0, 2.0, 5.0]), st.sampled_from([6, 12]))
def peak_scale_lifts_the_largest_mass_to_a_quarter(table, alpha, size):
    """Groups of six and twelve can have the solve rate 1 / (1 + alpha) exactly."""

    def mass(solved: int, scale: str) -> float:
        inputs = of_one_prompt([1.0] * solved + [0.0] * (size - solved))
        return float(advantage_of(table, "power", inputs, alpha=alpha, scale=scale)[:solved].sum()) / size

    masses = [mass(solved, "peak") for solved in range(1, size)]
    assert max(masses) == pytest.approx(0.25, rel=1e-9)
    assert masses.index(max(masses)) + 1 == pytest.approx(size / (1 + alpha))
    assert mass(1, "none") == pytest.approx(1 / size * (1 - 1 / size) ** alpha, rel=1e-9)


# --- FADE's controller


STEPS = st.lists(st.tuples(OUTCOMES, st.floats(0, 3), st.sampled_from([0.0, -0.5])), min_size=1, max_size=6)
NEW_WEIGHTS = st.sampled_from([0.02, 0.3, 1.0])


def fade_run(table, steps, *, through_json: bool = False, **options: Any) -> list[tuple[list[float], dict[str, float]]]:
    """Advantages and state after every batch: one prompt, its scores shifted by a penalty, one response without a grade."""
    found, state = [], {}
    for outcomes, entropy, penalty in steps:
        inputs = of_one_prompt([*(outcome + penalty for outcome in outcomes), math.nan])
        inputs = inputs._replace(score=inputs.reward - penalty, entropy=entropy)
        given = json.loads(json.dumps(state)) if through_json else state
        before = dict(given)
        advantage, state = table["fade"](inputs, given, **options)
        assert given == before, "a state that was handed in has changed"
        state = dict(state)
        found.append((advantage.tolist(), state))
    return found


@for_all(STEPS, NEW_WEIGHTS)
def fade_state_survives_json_and_holds_all_there_is(table, steps, weight):
    run = fade_run(table, steps, ema_new_weight=weight)
    assert fade_run(table, steps, through_json=True, ema_new_weight=weight) == run
    for _, state in run:
        assert set(state) == {"solve_rate", "entropy", "initial_entropy", "alpha", "delta"}
        assert all(type(value) is float for value in state.values())
        assert state["initial_entropy"] == steps[0][1]


@for_all(STEPS, NEW_WEIGHTS)
def fade_schedules_stay_in_range_and_follow_the_running_means(table, steps, weight):
    low_start = {"initial_solve_rate": 0.4}
    states = [state for _, state in fade_run(table, steps, ema_new_weight=weight, alpha_max=2.5, delta_min=0.4, **low_start)]
    for state in states:
        assert 1 <= state["alpha"] <= 2.5
        assert 0.4 <= state["delta"] <= 1
        assert 0 <= state["solve_rate"] <= 1
    assert max(state["entropy"] for state in states) <= max(entropy for _, entropy, _ in steps) + 1e-12
    for one in states:
        for two in states:
            if one["solve_rate"] <= two["solve_rate"]:
                assert one["alpha"] >= two["alpha"]
            if one["entropy"] <= two["entropy"]:
                assert one["delta"] <= two["delta"]


@for_all(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0, 3), st.floats(0, 3), st.floats(0.1, 3))
def alpha_never_rises_with_the_solve_rate_nor_delta_falls_with_entropy(table, rate, other_rate, entropy, other_entropy, target):
    def state(solve_rate: float, level: float) -> dict[str, float]:
        inputs = inputs_of([(0.0, 0, 1), (1.0, 0, 1)])._replace(entropy=level)
        scores = torch.full_like(inputs.reward, solve_rate)
        return table["fade"](inputs._replace(score=scores), {}, ema_new_weight=1.0, target_entropy=target).state

    harder, easier = (state(solve_rate, 1.0)["alpha"] for solve_rate in sorted((rate, other_rate)))
    assert harder >= easier
    lower, higher = (state(0.5, level)["delta"] for level in sorted((entropy, other_entropy)))
    assert lower <= higher


@for_all(OUTCOMES, st.sampled_from([0.02, 0.25]), st.sampled_from([0.3, 0.5, 0.9]), st.floats(0.1, 3))
def a_running_mean_moves_by_its_share_before_it_is_used(table, outcomes, weight, start, entropy):
    solved = sum(outcomes) / len(outcomes)
    ((_, state),) = fade_run(table, [(outcomes, entropy, -0.5)], ema_new_weight=weight, initial_solve_rate=start)
    moved = start + weight * (solved - start)
    assert state["solve_rate"] == pytest.approx(moved)
    assert state["alpha"] == pytest.approx(min(3.0, max(1.0, 1.5 * (1 - moved) / moved)))
    assert state["entropy"] == pytest.approx(entropy)
    # Half of the first entropy is below the first entropy: at the start nothing is pushed.
    assert state["delta"] == 1


@for_all(st.floats(0.5, 2), st.floats(0, 2))
def half_the_first_entropy_stays_the_target(table, first, later):
    states = [state for _, state in fade_run(table, [([0.0, 1.0], first, 0.0)] + [([0.0, 1.0], later, 0.0)] * 3, ema_new_weight=0.5)]
    for state in states:
        assert state["delta"] == pytest.approx(min(1.0, max(0.3, 1 + state["entropy"] - first / 2)))
    assert states[-1]["entropy"] == pytest.approx(later + (first - later) / 8)


LAWS: dict[Law, tuple[str, ...]] = {
    masses_of_a_prompt_are_those_of_the_paper: (
        "one power too many",
        "focus on easy prompts",
        "the batch's difficulty",
        "successes are divided",
        "failures are multiplied",
        "both sides are divided",
        "always lifted",
    ),
    without_focus_and_with_equal_signs_it_is_dr_grpo: ("zero to the zero is zero", "one power too many"),
    a_solved_prompt_weighs_nothing_unless_focus_is_off: ("a pole at solved prompts",),
    peak_scale_lifts_the_largest_mass_to_a_quarter: ("peak of the symmetric mass", "always lifted"),
    fade_state_survives_json_and_holds_all_there_is: (
        "the state is a tensor",
        "the state is changed in place",
        "the first entropy is forgotten",
        "memory outside the state",
    ),
    fade_schedules_stay_in_range_and_follow_the_running_means: (
        "alpha is not clipped below",
        "alpha is not clipped above",
        "delta is not clipped below",
        "delta is not clipped above",
        "the running means overshoot",
    ),
    alpha_never_rises_with_the_solve_rate_nor_delta_falls_with_entropy: ("alpha grows with the solve rate", "delta falls with entropy"),
    a_running_mean_moves_by_its_share_before_it_is_used: (
        "the newest batch is everything but a share",
        "set before the batch is taken in",
        "the shaped reward is the solve rate",
        "ungraded scores are failures",
    ),
    half_the_first_entropy_stays_the_target: ("the target follows the entropy", "the first entropy is forgotten"),
}

test_the_code_obeys, test_the_law_rejects, test_the_table_is_complete = law_tests_from_edits(LAWS, advantages_with, FOCAL, CONTROLLER)
