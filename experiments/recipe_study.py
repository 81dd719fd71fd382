"""Every recipe through `tokencredit compare`: all are tuned, the best eight, dapo, grpo and the A/A control are run on fresh seeds.

python experiments/recipe_study.py --jobs 2 --out runs/recipe-study
python experiments/recipe_study.py --jobs 2 --out runs/recipe-study --dry-run

Flags of `tokencredit compare` and `train` may follow and go on top. Recipes are given 256 rollouts a step: 32 prompts x 8, and where a
recipe needs no groups also 256 x 1. Not here: those that begin from another base (ibpo), and vineppo, which samples more than ten
times its rollouts. `experiments/finals_elsewhere.py` takes the finalists and their rates to other bases.
"""

import subprocess
import sys

from tokencredit.config.recipes import RECIPES

ELSEWHERE = ("ibpo", "ibpo-mask", "vineppo")
ONE = "sampling.prompts=256+sampling.group_size=1"
OTHER_BATCHES = (
    f"right-once:{ONE}",
    f"c-rf:{ONE}",
    f"c-rf:credit.type=ntf-keep+{ONE}",
    f"c-rf:credit.type=one-sided+{ONE}",
    f"c-rf:optimizer.steps_per_batch=8+{ONE}",
    f"ntf:{ONE}",
    f"ntf-whitened:{ONE}",
    f"reinforce++:advantage.over=responses+{ONE}",
    f"reinforce++:advantage.over=responses+credit.type=ntf-keep+{ONE}",
    "dapo:sampling.prompts=64+sampling.group_size=4",
    "dapo:optimizer.steps_per_batch=8",
)
SAME_FOR_ALL = {
    "--sampling.group-size": "8",
    "--steps": "40",
    "--evaluation.every": "5",
    "--evaluation.samples": "2",
    "--evaluation.final-problems": "256",
    "--diagnose.every": "0",
}
STUDY = {
    "--recipes": ",".join([*(name for name in RECIPES if name not in ELSEWHERE), *OTHER_BATCHES]),
    "--reference": "dapo",
    "--always": "grpo",
    "--finalists": "8",
    "--models": "steps-shift,steps-sharpen",
    "--rates": "5e-4,1e-3",
    "--tune-seeds": "3",
    "--seeds": "8",
    **SAME_FOR_ALL,
}


def main() -> None:
    flags = [word for pair in STUDY.items() for word in pair]
    sys.exit(subprocess.run([sys.executable, "-m", "tokencredit", "compare", *flags, *sys.argv[1:]], check=False).returncode)


if __name__ == "__main__":
    main()
