"""`tokencredit sft`: a supervised warm start, in the same engine and the same kind of run folder as `train`.

Every token of a demonstration receives credit 1 under the plain policy gradient, which is cross-entropy.
"""

from collections.abc import Sequence

from tokencredit.commands import train
from tokencredit.commands.flags import TrainingKind

SFT = TrainingKind(
    "tokencredit sft [CONFIG.toml ...] [OPTIONS]",
    "Warm a policy up on a task's own demonstrations; then `tokencredit train --model RUN`.",
    {
        "recipe": "c-rf",
        "objective": {"type": "policy-gradient"},
        "source": "demonstrations",
        "steps": 100,
        "sampling": {"prompts": 64, "group_size": 1},
        "optimizer": {"steps_per_batch": 1},
        "diagnose": {"every": 0},
        # What it is shown, a policy should become sure of.
        "guard": {"entropy_share": 0.0},
    },
)


def run(arguments: Sequence[str]) -> int:
    return train.run(arguments, SFT)
