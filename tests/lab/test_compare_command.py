"""What `tokencredit compare` takes, and what it refuses before anything is trained."""

import json
from pathlib import Path

import pytest

from fault.command import assert_refused, tokencredit
from made_up.comparison import make_comparison
from tokencredit.config.resolve import resolve
from tokencredit.lab.commands.compare_options import parse_compare
from tokencredit.lab.compare.design import make_arm, read_recipes

COMPARE = ["compare", "--recipes"]

REFUSED = {
    "no recipe": (["compare"], "recipes is missing"),
    "an unknown recipe": ([*COMPARE, "dapo,dleta"], "recipes: 'dleta' is not known; did you mean 'delta'?"),
    "a recipe twice": ([*COMPARE, "dapo,delta,dapo"], "recipes names dapo more than once"),
    "an unknown setting": ([*COMPARE, "dapo,delta:credit.scoop=group"], "credit.scoop is not a setting; did you mean 'scope'?"),
    "a bad value": ([*COMPARE, "dapo,delta:credit.scope=words"], "credit.scope is 'words'"),
    "a setting of another type": ([*COMPARE, "dapo:credit.scope=group"], "credit.scope is not a setting"),
    "a setting and a part of it": ([*COMPARE, "dapo:credit.type=ntf+credit.type.x=1"], "sets credit.type and credit.type.x, a part of it"),
    "no value": ([*COMPARE, "dapo:filter_groups"], "is not written name=value"),
    "nothing after the colon": ([*COMPARE, "dapo:"], "ends in a colon"),
    "what must be the same for all": ([*COMPARE, "dapo:evaluation.problems=8"], "sets evaluation.problems, which must be the same for all"),
    "temperature, which evaluation reads": ([*COMPARE, "dapo:sampling.temperature=0.5"], "must be the same for all"),
    "rates twice over": ([*COMPARE, "dapo:optimizer.learning_rate=1e-3", "--rates", "1e-4"], "give one of them"),
    "rates that are none": ([*COMPARE, "dapo", "--rates", "fast"], "rates is 'fast'; write numbers"),
    "an unknown base": ([*COMPARE, "dapo", "--models", "steps-shfit"], "model 'steps-shfit' is neither"),
    "a base twice": ([*COMPARE, "dapo", "--models", "steps-shift,steps-shift"], "models names steps-shift more than once"),
    "an unknown reference": ([*COMPARE, "dapo,delta", "--reference", "grpo"], "reference 'grpo' is not among the recipes"),
    "a flag nobody has": ([*COMPARE, "dapo", "--stepps", "4"], "--stepps"),
    "one recipe's flag": ([*COMPARE, "dapo,delta", "--credit.scope", "group"], "--credit.scope"),
    "train's own seed": ([*COMPARE, "dapo", "--seed", "3"], "--seed is not an option of compare; write --seeds and --first-seed"),
    "a threshold beyond 1": ([*COMPARE, "dapo", "--threshold", "80"], "threshold is 80"),
    "fewer than no jobs": ([*COMPARE, "dapo", "--jobs", "-1"], "jobs is -1"),
    "a folder that holds something": ([*COMPARE, "dapo", "--out", "full"], "exists and is not empty"),
    "nothing to tell again": (["compare", "--jobs", "0", "--out", "full"], "holds no comparison"),
    "a config file that is not there": (["compare", "no.toml", "--recipes", "dapo"], "no.toml does not exist"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_mistakes_are_told_before_anything_is_trained(tmp_path: Path, mistake: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert_refused(*REFUSED[mistake], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"full"}


@pytest.mark.parametrize("damage", ["cut", "another kind", "without rows", "rows of nothing"])
def test_a_damaged_comparison_is_told_in_words(tmp_path: Path, damage: str) -> None:
    told = make_comparison(seeds=2)
    if damage == "another kind":
        told["kind"] = "shopping list"
    elif damage == "without rows":
        del told["runs"]
    elif damage == "rows of nothing":
        told["runs"] = [{"recipe": "dapo", "tuning": False}]
    text = json.dumps(told)
    (tmp_path / "comparison.json").write_text(text[:400] if damage == "cut" else text)
    assert_refused(["compare", "--jobs", "0", "--out", "."], "comparison.json cannot be read as a comparison", tmp_path)


def test_settings_of_a_recipe() -> None:
    found = read_recipes(
        "dapo, reinforce++,delta:credit.scope=group+credit.lam-max=1.5+kl.beta=1e-3,dapo:credit.type=delta+credit.lam_max=1e+0"
    )
    assert [one.label for one in found][:2] == ["dapo", "reinforce++"]
    assert found[2].settings == {"credit.scope": "group", "credit.lam_max": 1.5, "kl.beta": 1e-3}
    assert found[3].settings == {"credit.type": "delta", "credit.lam_max": 1.0}
    arms = [make_arm(one, lambda recipe: resolve([{"recipe": recipe}])) for one in found]
    assert arms[2].config.credit.model_dump(include={"scope", "lam_max"}) == {"scope": "group", "lam_max": 1.5}
    assert (arms[3].config.recipe, arms[3].config.credit.type) == ("dapo", "delta")
    assert arms[0].config == resolve([{"recipe": "dapo"}])
    assert not any(arm.control for arm in arms)
    assert make_arm(read_recipes("random-lambda:credit.lam_max=1.5")[0], lambda recipe: resolve([{"recipe": recipe}])).control


def test_a_recipe_may_end_earlier_than_the_others() -> None:
    [one] = read_recipes("c-rf:steps=28")
    assert make_arm(one, lambda recipe: resolve([{"recipe": recipe, "steps": 40}])).config.steps == 28


def test_flags_of_train_are_handed_on() -> None:
    options, files, rest = parse_compare(
        ["a.toml", "--recipes", "dapo", "--steps", "4", "--rates", "3e-4,8e-4", "--task", "cotadd", "--jobs=1"]
    )
    assert (files, rest) == (["a.toml"], ["--steps", "4", "--task", "cotadd"])
    assert (options.rates_read, options.jobs, options.seeds) == ([3e-4, 8e-4], 1, 8)


def test_a_dry_run_names_every_run_and_writes_nothing(tmp_path: Path) -> None:
    said = tokencredit(*COMPARE, "dapo,ibpo", "--rates", "3e-4,8e-4", "--tune-seeds", "1", "--seeds", "3", "--dry-run", cwd=tmp_path).stdout
    assert "would compare in runs/001-compare: 10 runs, 2 at a time" in said
    assert said.count("(tuning)") == 4
    assert "ibpo on steps-shift, rate 0.0008, seed 10000 (tuning)" in said
    assert "then seeds 0 to 2 of every recipe and base at its best rate" in said
    assert list(tmp_path.iterdir()) == []


def test_groups_that_a_recipe_was_not_made_for_are_told_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "groups.toml").write_text("[sampling]\nprompts = 32\ngroup_size = 8\n")
    words = "right-once is designed for one response per prompt, but the shared sampling.group_size is 8"
    for recipes, told in {
        "dapo,right-once": True,
        "dapo,right-once:sampling.prompts=256+sampling.group_size=1": False,
        "dapo,right-once:sampling.group_size=8": False,
        "dapo,right-once:advantage.type=grpo": False,
        "dapo,delta": False,
    }.items():
        said = tokencredit("compare", "groups.toml", "--recipes", recipes, "--seeds", "1", "--dry-run", cwd=tmp_path).stdout
        assert (words in said) == told, recipes
        assert ("add sampling.prompts=256+sampling.group_size=1 to its settings" in said) == told
    assert words not in tokencredit(*COMPARE, "dapo,right-once", "--seeds", "1", "--dry-run", cwd=tmp_path).stdout


def test_files_set_what_all_share(tmp_path: Path) -> None:
    (tmp_path / "easy.toml").write_text('model = "steps-sharpen"\nsteps = 7\n[optimizer]\nlearning_rate = 2e-4\n')
    said = tokencredit("compare", "easy.toml", "--recipes", "dapo", "--seeds", "1", "--dry-run", cwd=tmp_path).stdout
    assert "dapo on steps-sharpen, rate 0.0002, seed 0" in said


def test_choosing_what_to_compare_loads_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.argv = ['tokencredit', 'compare', '--recipes', 'dapo,delta', '--dry-run']\n"
        "from tokencredit.cli import main\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
