"""Wrong advantages, the real source with one line changed, and the batches on which laws meet them."""

import math
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from laws.harness import Edit, loaded_with
from tokencredit.advantage.base import Advantage, AdvantageInputs

GROUP_IDS = [-3, 6, 40]
GREEDY = {-3: 0.5, 6: 1.0, 40: -0.25}
"""Score of the greedy response to each prompt; any other prompt's is 0."""
# Quarters, so that sums of rewards are exact and a difference between two results is never their rounding.
QUARTERS = 17
GRADES = st.integers(-8, 8).map(lambda quarters: quarters / 4)
LENGTHS = 7


def response(code: int) -> tuple[float, int, int]:
    """Reward, group and length out of one number, which is quicker to draw; rewards past the grades could not be graded."""
    code, grade = divmod(code, QUARTERS + 4)
    length, group = divmod(code, len(GROUP_IDS))
    return (grade - 8) / 4 if grade < QUARTERS else math.nan, GROUP_IDS[group], length


RESPONSES = st.lists(st.integers(0, (QUARTERS + 4) * len(GROUP_IDS) * LENGTHS - 1).map(response), min_size=1, max_size=10)
GRADED_RESPONSES = RESPONSES.map(lambda responses: [(0.0 if math.isnan(reward) else reward, *rest) for reward, *rest in responses])


def inputs_of(responses: list[tuple[float, int, int]]) -> AdvantageInputs:
    reward = torch.tensor([row[0] for row in responses], dtype=torch.float64)
    group, length = (torch.tensor([row[place] for row in responses]) for place in (1, 2))
    greedy_score = torch.tensor([GREEDY.get(row[1], 0.0) for row in responses], dtype=torch.float64)
    return AdvantageInputs(reward, group, length, score=reward, entropy=1.0, greedy_score=greedy_score)


def rows_of(inputs: AdvantageInputs, rows: Tensor) -> AdvantageInputs:
    return inputs._replace(**{name: getattr(inputs, name)[rows] for name in ("reward", "group", "length", "score", "greedy_score")})


def of_one_prompt(rewards: list[float], length: int = 1) -> AdvantageInputs:
    return inputs_of([(reward, 6, length) for reward in rewards])


def advantage_of(table, kind: str, inputs: AdvantageInputs, **options: Any) -> Tensor:
    return table[kind](inputs, {}, **options).advantage


MODULES = (
    "masked",
    "advantage.base",
    "advantage.whitened",
    "advantage.fade",
    "advantage.group",
    "advantage",
)
"""In the order in which they import one another."""


@cache
def advantages_with(edit: Edit | None = None) -> dict[str, Advantage]:
    """The table of advantages; without an edit, the code as it is."""
    return loaded_with(MODULES, edit).ADVANTAGES


REDUCTIONS: dict[str, Edit] = {
    "groups are runs of rows": Edit(
        "masked",
        """\
    index = torch.unique(group, return_inverse=True)[1]
    known = ~value""",
        """\
    index = (group.diff(prepend=group[:1]) != 0).cumsum(0)
    known = ~value""",
    ),
    "siblings are runs of rows": Edit(
        "masked",
        """\
    index = torch.unique(group, return_inverse=True)[1]
    nothing =""",
        """\
    index = (group.diff(prepend=group[:1]) != 0).cumsum(0)
    nothing =""",
    ),
    "a group's id is its row": Edit(
        "masked",
        """\
    index = torch.unique(group, return_inverse=True)[1]
    known = ~value""",
        """\
    index = group % len(group)
    known = ~value""",
    ),
    "lengths are ignored": Edit("masked", "known.double() if times is None else known * times.double()", "known.double()"),
    "ungraded tokens are counted": Edit("masked", "known * times.double()", "times.double()"),
    "population variance": Edit("masked", "(count - 1).clamp(min=1)).sqrt()", "count.clamp(min=1)).sqrt()"),
    "rounding is spread": Edit("masked", "torch.where(std > rounding, std, torch.zeros_like(std))", "std"),
    "a shared best has a runner-up": Edit("masked", "torch.where(leads & (leaders == 1),", "torch.where(leads,"),
    "the best sibling is oneself": Edit("masked", "torch.where(leads & (leaders == 1),", "torch.where(leads & (leaders == 0),"),
}
"""Sums, means, spreads and maxima over groups."""

PRESETS: dict[str, Edit] = {
    "ungraded is zero": Edit("advantage.base", "nan=0.0) if preset.ungraded_counts_as_zero else reward", "nan=0.0)"),
    "ungraded is never zero": Edit(
        "advantage.base", "torch.nan_to_num(reward, nan=0.0) if preset.ungraded_counts_as_zero else reward", "reward"
    ),
    "a lone response keeps its reward": Edit(
        "advantage.base", "reward if preset.lone_response_keeps_reward else torch.zeros_like(reward)", "reward"
    ),
}
"""Groups of one, and responses without a grade."""

BATCH_LEVEL: dict[str, Edit] = {
    "whitened within groups": Edit(
        "advantage.whitened",
        "    return whiten(value, length",
        "    from tokencredit.masked import group_statistics\n\n"
        "    value = value - group_statistics(value, group).mean\n"
        "    return whiten(value, length",
    ),
    "whitened without a mean": Edit("advantage.whitened", "(value - mean) / spread", "value / spread"),
    "epsilon beside the standard deviation": Edit("advantage.whitened", "std.hypot(std.new_tensor(math.sqrt(epsilon)))", "(std + epsilon)"),
    "a response without tokens is whitened": Edit("advantage.whitened", "(times > 0) & ", ""),
    "no guard against rounding": Edit("advantage.whitened", " & (std > 0)", ""),
    "tokens are responses": Edit(
        "advantage.whitened", 'length if over == "tokens" else torch.ones_like(length)', "torch.ones_like(length)"
    ),
    "responses are tokens": Edit("advantage.whitened", 'length if over == "tokens" else torch.ones_like(length)', "length"),
    "whitened over responses after the baseline": Edit("advantage.whitened", "centred), length, ", "centred), length.clamp(max=1), "),
    "the baseline is the batch's": Edit(
        "advantage.whitened", "group_statistics(value, group)", "group_statistics(value, torch.zeros_like(group))"
    ),
    "a lone response is a zero": Edit("advantage.whitened", "torch.full_like(value, torch.nan)", "torch.zeros_like(value)"),
    "a dead group keeps its rounding": Edit(
        "advantage.whitened", "torch.where(std > 0, value - mean, torch.zeros_like(value))", "value - mean"
    ),
    "boost counts ungraded responses": Edit("advantage.group", "graded.sum(dtype=value.dtype) /", "len(value) /", inside="gpg_advantage"),
    "boost by positive rewards": Edit("advantage.group", "graded & (value != 0)", "graded & (value > 0)"),
    "boost per group": Edit(
        "advantage.group",
        "    boost = graded",
        "    from tokencredit.masked import group_statistics\n\n"
        "    return dr_grpo_advantage(reward, group, preset=preset) / group_statistics(rewarded.double(), group).mean.clamp(min=1e-3)\n"
        "    boost = graded",
    ),
    "no boost": Edit("advantage.group", "return boost * ", "return 1.0 * "),
    "sides not balanced": Edit(
        "advantage.group", "mass / failure.sum().clamp(min=1) * failure", "mass / success.sum().clamp(min=1) * failure"
    ),
    "mass is the whole batch's": Edit("advantage.group", "graded.sum(dtype=value.dtype) / sides", "len(value) / sides"),
    "a single side is halved": Edit("advantage.group", "sides = 2 if success.any() and failure.any() else 1", "sides = 2"),
    "the threshold is a success": Edit("advantage.group", "value > threshold", "value >= threshold"),
    "ungraded is a failure": Edit("advantage.group", "failure = graded & ~success", "failure = ~success"),
    "the shaped reward is the outcome": Edit(
        "advantage.base", "function(inputs.score, inputs.group", "function(inputs.reward, inputs.group"
    ),
}
"""Whitening, boosts and sides over the whole batch."""

GROUP_LEVEL: dict[str, Edit] = {
    "opo weighs responses alike": Edit("advantage.group", "group_statistics(value, group, length)", "group_statistics(value, group)"),
    "opo weighs by the inverse length": Edit(
        "advantage.group", "group_statistics(value, group, length)", "group_statistics(value, group, 720 // length.clamp(min=1))"
    ),
    "opo leaves the batch uncompared": Edit("advantage.group", "value - baseline", "value"),
    "every leader is credited": Edit("advantage.group", ".clamp(min=0)", ".clamp(min=0) + 0.1 * (value == best_sibling(value, group))"),
    "losers are blamed": Edit("advantage.group", ".clamp(min=0)", ""),
    "lead over the mean": Edit("advantage.group", "value - best_sibling(value, group)", "value - group_statistics(value, group).mean"),
    "always normalised": Edit("advantage.group", "if normalize:", "if True:"),
    "never normalised": Edit("advantage.group", "if normalize:", "if False:"),
    "verl keeps a lone reward": Edit("advantage.group", "rule._replace(lone_response_keeps_reward=False)", "rule"),
    "rloo with its own reward": Edit("advantage.group", "count / (count - 1).clamp(min=1) * ", ""),
}
"""Comparisons within a group."""

REMAX: dict[str, Edit] = {
    "greedy scores in another order": Edit("advantage.group", "greedy_score.to(value.dtype)", "greedy_score.flip(0).to(value.dtype)"),
    "one greedy score for the batch": Edit("advantage.group", "greedy_score.to(value.dtype)", "greedy_score.to(value.dtype).nanmean()"),
    "no baseline": Edit("advantage.group", "value - greedy_score.to(value.dtype)", "value + 0 * greedy_score"),
    "the larger of the two": Edit(
        "advantage.group", "value - greedy_score.to(value.dtype)", "torch.maximum(value, greedy_score) - greedy_score"
    ),
    "divided by the baseline": Edit(
        "advantage.group", "value - greedy_score.to(value.dtype)", "(value - greedy_score) / (1 + greedy_score.abs())"
    ),
    "compared in the batch too": Edit(
        "advantage.group", "value - greedy_score.to(value.dtype)", "value - greedy_score - (value - greedy_score).nanmean()"
    ),
    "compared in the group too": Edit(
        "advantage.group",
        "    return AdvantageOutcome(remax_advantage(inputs.reward,",
        "    from tokencredit.advantage.group import dr_grpo_advantage\n\n"
        "    return AdvantageOutcome(remax_advantage(dr_grpo_advantage(inputs.reward, inputs.group),",
    ),
    "an ungraded response scored 0": Edit("advantage.group", "value - greedy", "value.nan_to_num() - greedy"),
    "an ungraded greedy response scored 0": Edit("advantage.group", "greedy_score.to(value.dtype)", "greedy_score.nan_to_num()"),
    "one ungraded greedy response silences all": Edit(
        "advantage.group", "greedy_score.to(value.dtype)", "(greedy_score + 0 * greedy_score.sum())"
    ),
}
"""The greedy baseline."""

POWER: dict[str, Edit] = {
    "delta is ignored": Edit("advantage.fade", "alpha=alpha, delta=delta)", "alpha=alpha)"),
    "delta is turned over": Edit("advantage.fade", "alpha=alpha, delta=delta)", "alpha=alpha, delta=1 / delta)"),
    "delta for both sides": Edit("advantage.fade", "alpha=alpha, delta=delta)", "alpha=alpha) / delta"),
    "delta to the power of alpha": Edit("advantage.fade", "alpha=alpha, delta=delta)", "alpha=alpha, delta=delta**alpha)"),
    "failures weigh more unasked": Edit("advantage.fade", "delta: float = 1.0", "delta: float = 0.5", inside="power_advantage"),
}
"""Sign beside difficulty."""

FOCAL: dict[str, Edit] = {
    "one power too many": Edit("advantage.fade", "unsolved.pow(alpha - 1)", "unsolved.pow(alpha)"),
    "focus on easy prompts": Edit("advantage.fade", "unsolved = 1 - mean", "unsolved = mean"),
    "the batch's difficulty": Edit(
        "advantage.fade", "unsolved = 1 - mean", "unsolved = 1 - group_statistics(value, torch.zeros_like(group)).mean"
    ),
    "zero to the zero is zero": Edit("advantage.fade", "float(alpha == 1)", "0.0"),
    "a pole at solved prompts": Edit(
        "advantage.fade",
        "torch.where(solved, torch.full_like(mean, float(alpha == 1)), unsolved.pow(alpha - 1))",
        "unsolved.pow(alpha - 1)",
    ),
    "successes are divided": Edit("advantage.fade", "value < mean", "value > mean"),
    "failures are multiplied": Edit("advantage.fade", "centred / delta", "centred * delta"),
    "both sides are divided": Edit("advantage.fade", "torch.where(value < mean, centred / delta, centred)", "centred / delta"),
    "peak of the symmetric mass": Edit("advantage.fade", "(1 + alpha) / 4 * (1 + 1 / alpha) ** alpha", "(1 + alpha) / 4 * 2**alpha"),
    "always lifted": Edit("advantage.fade", 'if scale == "peak" else 1.0', "if True else 1.0"),
}
"""Difficulty, sign and scale."""

CONTROLLER: dict[str, Edit] = {
    "alpha grows with the solve rate": Edit(
        "advantage.fade", "(1 - solve_rate) / solve_rate if solve_rate > 0", "solve_rate / (1 - solve_rate) if solve_rate < 1"
    ),
    "alpha is not clipped below": Edit("advantage.fade", "max(1.5 * odds_against, 1.0)", "1.5 * odds_against"),
    "alpha is not clipped above": Edit(
        "advantage.fade", "min(max(1.5 * odds_against, 1.0), alpha_max)", "max(1.5 * min(odds_against, 99), 1.0)"
    ),
    "delta falls with entropy": Edit("advantage.fade", "1 + entropy - target_entropy", "1 - entropy + target_entropy"),
    "delta is not clipped below": Edit("advantage.fade", "max(1 + entropy - target_entropy, delta_min)", "(1 + entropy - target_entropy)"),
    "delta is not clipped above": Edit(
        "advantage.fade", "min(max(1 + entropy - target_entropy, delta_min), 1.0)", "max(1 + entropy - target_entropy, delta_min)"
    ),
    "the newest batch is everything but a share": Edit(
        "advantage.fade",
        "(1 - ema_new_weight) * old + ema_new_weight * new",
        "ema_new_weight * old + (1 - ema_new_weight) * new",
    ),
    "the running means overshoot": Edit("advantage.fade", "(1 - ema_new_weight) * old", "old"),
    "set before the batch is taken in": Edit("advantage.fade", "fade_alpha(mean_rate,", 'fade_alpha(before["solve_rate"],'),
    "the target follows the entropy": Edit("advantage.fade", "initial_entropy / 2 if target", "mean_entropy / 2 if target"),
    "the first entropy is forgotten": Edit("advantage.fade", '"initial_entropy": initial_entropy,', '"initial_entropy": entropy,'),
    "the state is a tensor": Edit(
        "advantage.fade",
        "float(masked_mean(inputs.score.double(), graded).clamp(0, 1))",
        "masked_mean(inputs.score.double(), graded).clamp(0, 1)",
    ),
    "the state is changed in place": Edit("advantage.fade", "    return {\n", '    before["solve_rate"] = mean_rate\n    return {\n'),
    "the shaped reward is the solve rate": Edit(
        "advantage.fade", "masked_mean(inputs.score.double(), graded)", "masked_mean(inputs.reward.double(), graded)"
    ),
    "ungraded scores are failures": Edit(
        "advantage.fade", "masked_mean(inputs.score.double(), graded)", "inputs.score.double().nan_to_num().mean()"
    ),
    "memory outside the state": Edit(
        "advantage.fade",
        "    before = state or ",
        '    fade_controller.calls = getattr(fade_controller, "calls", 0) + 1\n'
        "    solve_rate = solve_rate and solve_rate / fade_controller.calls\n"
        "    before = state or ",
    ),
}
"""Running means, schedules, and what is remembered."""
