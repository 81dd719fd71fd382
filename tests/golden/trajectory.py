"""Three float64 steps of every recipe, as numbers. Record them again, deliberately, with: python tests/golden/trajectory.py [NAME ...]"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.runs import run, small_config
from tokencredit.config.recipes import RECIPES

STORED = Path(__file__).with_name("trajectory.json")
FIELDS = ("score", "reward", "entropy", "loss", "grad_norm", "silenced_share", "ratio_mean", "coefficient_std", "rollouts_used")


def trajectory(recipe: str) -> list[dict[str, float]]:
    config = small_config(recipe=recipe, steps=3, dtype="float64", device="cpu", evaluation={"every": 0}, save_every=0, tokens_every=0)
    with tempfile.TemporaryDirectory() as scratch:
        run(config, Path(scratch) / "run")
        rows = [json.loads(line) for line in (Path(scratch) / "run" / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in FIELDS if name in row} for row in rows]


if __name__ == "__main__":
    named = sys.argv[1:] or list(RECIPES)
    stored = json.loads(STORED.read_text())
    trajectories = {recipe: trajectory(recipe) if recipe in named else stored[recipe] for recipe in RECIPES}
    STORED.write_text(json.dumps(trajectories, indent=1) + "\n")
