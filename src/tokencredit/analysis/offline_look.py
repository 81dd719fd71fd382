"""One training step on rollouts of another trainer, under the microscope.

The other trainer's optimizer is not known, so the step is ours: the recipe's credit and objective, a fresh AdamW.
"""

from tokencredit.analysis.offline import credit_stored
from tokencredit.analysis.offline_table import stored_texts
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.forward.modes import choose_passes
from tokencredit.optim.optimizer import make_optimizer
from tokencredit.policy.lora import add_adapters
from tokencredit.policy.policy import Policy
from tokencredit.rollout_io.read import StoredRollouts
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Problem
from tokencredit.trainer.step import TrainedBatch, update
from tokencredit.trainer.tokens import TokenLabels


def train_once(policy: Policy, stored: StoredRollouts, config: TrainConfig) -> TrainedBatch:
    """Changes the policy, as training would."""
    credited, _, pipeline = credit_stored(policy, stored, config)
    passes = choose_passes(config, policy.model)
    plan = pipeline.plan_steps(credited, seed=derive_seed(config.seed, "plan", 0), packed=passes.packed)
    if not plan.steps:
        raise ConfigError(f"recipe {config.recipe!r} plans no optimizer step for these rollouts; there is no update to look at")
    add_adapters(policy.model, config.lora, seed=config.seed)
    optimizer = make_optimizer(config, policy.model)
    result, microscope = update(policy, optimizer, credited, plan, pipeline.objective, config, number=0, look=True, passes=passes)
    by_group = dict(zip(stored.rollouts.group.tolist(), stored.prompts, strict=True))
    problems = [Problem(prompt=by_group[group] or "", answer="") for group in range(len(by_group))]
    return TrainedBatch(problems, credited, plan, result, microscope)


def stored_labels(policy: Policy, stored: StoredRollouts) -> TokenLabels:
    text = stored_texts(policy, stored)
    classes = ["token"] * len(text) if stored.token_class is None else [name for names in stored.token_class for name in names]
    return TokenLabels(text, classes, [None] * len(text))
