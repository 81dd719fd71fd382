"""Wrong versions of `group_advantage`, each a mistake somebody has made: (reward, group, *, kind, preset)."""

import torch

from tokencredit.advantage import group_advantage
from tokencredit.masked import group_statistics


def population_std(reward, group, **choice):
    graded = group_statistics(reward, group).graded
    wider = (graded / (graded - 1).clamp(min=1)).sqrt() if choice["kind"] == "grpo" else 1.0
    return group_advantage(reward, group, **choice) * wider


def bare_std(reward, group, **choice):
    _, mean, std = group_statistics(reward, group)
    return (reward - mean) / std


def ungraded_counts_as_zero(reward, group, **choice):
    return group_advantage(reward.nan_to_num(), group, **choice) * ~reward.isnan()


def ungraded_left_out(reward, group, *, kind, preset):
    return group_advantage(reward, group, kind=kind, preset="tokencredit")


def lone_response_keeps_reward(reward, group, **choice):
    return torch.where(group_statistics(reward, group).graded == 1, reward.nan_to_num(), group_advantage(reward, group, **choice))


def global_mean(reward, group, **choice):
    return group_advantage(reward, torch.zeros_like(group), **choice)


def contiguous_groups_only(reward, group, **choice):
    return group_advantage(reward, (group.diff(prepend=group[:1]) != 0).cumsum(0), **choice)


def group_id_as_index(reward, group, **choice):
    return group_advantage(reward, group % len(group), **choice)


def uncentred(reward, group, **choice):
    return group_advantage(reward, group, **choice) + group_statistics(reward, group).mean * ~reward.isnan()


def clipped_reward(reward, group, **choice):
    return group_advantage(reward.clamp(-1, 1), group, **choice)


def only_the_better_half(reward, group, **choice):
    return group_advantage(reward, group, **choice).clamp(min=0)


def baseline_with_own_reward(reward, group, *, kind, preset):
    return group_advantage(reward, group, kind="dr-grpo" if kind == "rloo" else kind, preset=preset)
