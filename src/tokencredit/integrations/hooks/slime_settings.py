"""Which settings of slime go with a recipe's functions, and which would do nothing beside them."""

from typing import Any

from tokencredit.config import Recipe
from tokencredit.errors import ConfigError

HOOKS = ("custom_reward_post_process_path", "custom_advantage_function_path", "custom_loss_function_path")
UNREAD = ("kl_coef", "use_kl_loss", "entropy_coef", "use_tis", "use_opsm", "use_opd", "custom_pg_loss_reducer_function_path")
"""Settings of slime's own loss and advantages, which these functions replace."""


def check_settings(args: Any, recipe: Recipe) -> None:
    """Refuse a run in which a part of the recipe, or of slime's own settings, would do nothing."""
    missing = [_flag(name) for name in HOOKS if getattr(args, name, None) is None]
    missing += [] if args.loss_type == "custom_loss" else ["--loss-type custom_loss"]
    if missing:
        raise ConfigError(f"a recipe is three functions in slime; also set {', '.join(missing)}")
    for name in UNREAD:
        if getattr(args, name, None):
            raise ConfigError(f"{_flag(name)} is {getattr(args, name)} but is not read by the recipe's functions; leave it out")
    if getattr(args, "normalize_advantages", False):
        raise ConfigError("--normalize-advantages would change the recipe's credit; leave it out")
    if getattr(args, "rollout_top_p", 1.0) != 1.0:
        raise ConfigError(f"--rollout-top-p is {args.rollout_top_p} but log-probs are taken over the whole vocabulary; use 1.0")
    aggregation = recipe.objective.aggregation
    if args.calculate_per_token_loss != (aggregation == "token-mean"):
        what = "set" if aggregation == "token-mean" else "leave out"
        raise ConfigError(f"the recipe's aggregation is {aggregation!r}; {what} --calculate-per-token-loss")
    if recipe.batching.type == "query-preserved" and args.global_batch_size % args.n_samples_per_prompt:
        raise ConfigError(
            f"--global-batch-size is {args.global_batch_size}, no multiple of --n-samples-per-prompt {args.n_samples_per_prompt}, "
            "so an optimizer step would split a prompt's responses"
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
