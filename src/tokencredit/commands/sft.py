"""`tokencredit sft`: supervised fine-tuning on demonstrations, with the engine and the run folder of `train`.

Each token of a demonstration has credit 1 under the policy-gradient objective, which equals cross-entropy.
"""

from collections.abc import Sequence

from tokencredit.commands import train
from tokencredit.commands.flags import TrainingKind

SFT = TrainingKind(
    "tokencredit sft [CONFIG.toml ...] [OPTIONS]",
    "Fine-tune a policy on a task's demonstrations. Then: tokencredit train --model RUN.",
    {
        "recipe": "c-rf",
        "objective": {"type": "policy-gradient"},
        "source": "demonstrations",
        "steps": 100,
        "sampling": {"prompts": 64, "group_size": 1},
        "optimizer": {"steps_per_batch": 1},
        "diagnose": {"every": 0},
        # Entropy is expected to fall: the policy becomes certain of the demonstrations.
        "guard": {"entropy_share": 0.0},
    },
)


def run(arguments: Sequence[str]) -> int:
    return train.run(arguments, SFT)
