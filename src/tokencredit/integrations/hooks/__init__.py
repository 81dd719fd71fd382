"""Functions for the hooks of SkyRL, prime-rl and slime. None of these engines is imported here."""

from tokencredit.integrations.hooks.prime_rl import prime_rl_custom_loss, prime_rl_loss
from tokencredit.integrations.hooks.skyrl import skyrl_advantage, skyrl_policy_loss
from tokencredit.integrations.hooks.slime import (
    slime_advantage,
    slime_custom_advantage,
    slime_custom_loss,
    slime_loss,
    slime_reward_post_process,
    slime_rewards,
)

__all__ = [
    "prime_rl_custom_loss",
    "prime_rl_loss",
    "skyrl_advantage",
    "skyrl_policy_loss",
    "slime_advantage",
    "slime_custom_advantage",
    "slime_custom_loss",
    "slime_loss",
    "slime_reward_post_process",
    "slime_rewards",
]
