"""What holds for every plan of a comparison: fairness between recipes, and seeds that are tuned on are never reported."""

from collections import Counter
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.errors import ConfigError
from tokencredit.lab.compare.design import (
    TUNING_SEEDS_FROM,
    Arm,
    Design,
    folder_name,
    make_arm,
    make_design,
    number_of_runs,
    read_recipes,
    refuse_fixed_rates,
    reported_runs,
    tuning_runs,
)
from tokencredit.lab.compare.document import advancing_recipes, best_rates, standings, tune

RECIPES = ("dapo", "delta", "delta:credit.scope=group", "dapo:filter-groups=true", "reinforce++", "ibpo")
RATES = (1e-4, 3e-4, 8e-4)


@cache
def configure(recipe: str) -> TrainConfig:
    return resolve([{"recipe": recipe, "steps": 5}])


@cache
def arm(text: str) -> Arm:
    return make_arm(read_recipes(text)[0], configure)


designs = st.builds(
    lambda recipes, bases, seeds, first, rates, tune_seeds: make_design(
        [arm(text) for text in recipes],
        recipes[0],
        {base: base for base in bases},
        seeds=seeds,
        first_seed=first,
        rates=rates,
        tune_seeds=tune_seeds,
    ),
    st.lists(st.sampled_from(RECIPES), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from(("steps-shift", "steps-sharpen")), min_size=1, max_size=2, unique=True),
    st.integers(1, 3),
    st.integers(0, 50),
    st.lists(st.sampled_from(RATES), max_size=3, unique=True),
    st.integers(1, 2),
)


def all_best(design: Design) -> dict[tuple[str, str], float]:
    return {(one.label, base): design.rates[-1] for one in design.arms for base in design.bases} if design.tunes else {}


@given(designs)
def test_every_recipe_gets_the_same_seeds_bases_and_tries(design: Design) -> None:
    tuning, reported = tuning_runs(design), reported_runs(design, all_best(design))
    for runs in (tuning, reported):
        places = {one.label: Counter((run.base, run.seed) for run in runs if run.arm == one.label) for one in design.arms}
        assert len({tuple(sorted(counted.items())) for counted in places.values()}) == 1
    assert {run.seed for run in reported} == set(design.seeds)
    assert len(tuning) + len(reported) == number_of_runs(design)
    assert bool(tuning) == (len(design.rates) > 1)


@given(designs)
def test_tuning_and_reported_seeds_are_apart(design: Design) -> None:
    tuned, reported = ({run.seed for run in runs} for runs in (tuning_runs(design), reported_runs(design, all_best(design))))
    assert not tuned & reported
    assert all(seed >= TUNING_SEEDS_FROM for seed in tuned)
    assert all(run.tuning for run in tuning_runs(design))


@given(designs)
def test_runs_of_one_seed_and_base_differ_in_the_recipe_alone(design: Design) -> None:
    runs = reported_runs(design, all_best(design))
    for run, other in product(runs, repeat=2):
        if (run.base, run.seed) == (other.base, other.seed):
            for name in ("model", "seed", "steps", "task", "evaluation", "prompt"):
                assert getattr(run.config, name) == getattr(other.config, name)
    assert all((run.config.model, run.config.seed, run.config.optimizer.learning_rate) == (run.base, run.seed, run.rate) for run in runs)


@given(designs)
def test_one_set_of_held_out_problems_is_reported_on_and_another_tuned_on(design: Design) -> None:
    tuned, reported = (
        {run.config.evaluation.seed for run in runs} for runs in (tuning_runs(design), reported_runs(design, all_best(design)))
    )
    assert reported == {0}
    assert tuned == ({TUNING_SEEDS_FROM} if design.tunes else set())


def test_held_out_problems_may_be_chosen() -> None:
    asked = make_arm(read_recipes("dapo")[0], lambda recipe: resolve([{"recipe": recipe, "evaluation": {"seed": 7}}]))
    design = make_design([asked], "dapo", {"steps-shift": "steps-shift"}, seeds=2, first_seed=3, rates=RATES, tune_seeds=1)
    assert {run.config.evaluation.seed for run in reported_runs(design, all_best(design))} == {7}
    assert {run.config.evaluation.seed for run in tuning_runs(design)} == {TUNING_SEEDS_FROM + 7}


@given(designs)
def test_every_run_has_a_folder_of_its_own(design: Design) -> None:
    runs = [*tuning_runs(design), *reported_runs(design, all_best(design))]
    assert len({str(run.path) for run in runs}) == len(runs)


@given(st.lists(st.text(min_size=1, max_size=80), max_size=8, unique=True))
def test_labels_become_names_that_a_file_system_takes(labels: list[str]) -> None:
    names = [folder_name(label) for label in labels]
    assert len(set(names)) == len(names)
    assert all(name not in ("", ".", "..") and "/" not in name and len(name) <= 60 and name.isascii() for name in names)


def rows_of(design: Design, areas: dict[tuple[str, float], float]) -> list[dict[str, object]]:
    return [
        {"recipe": run.arm, "base": run.base, "rate": run.rate, "seed": run.seed, "tuning": True}
        | {"curve": [[0, 0.0], [100, 2 * areas[run.arm, run.rate]]]}
        for run in tuning_runs(design)
    ]


def test_each_recipe_s_best_rate_is_that_of_its_largest_area() -> None:
    design = make_design(
        [arm("dapo"), arm("delta")], "dapo", {"steps-shift": "steps-shift"}, seeds=2, first_seed=0, rates=RATES, tune_seeds=2
    )
    areas = {
        ("dapo", 1e-4): 0.2,
        ("dapo", 3e-4): 0.4,
        ("dapo", 8e-4): 0.3,
        ("delta", 1e-4): 0.2,
        ("delta", 3e-4): 0.3,
        ("delta", 8e-4): 0.35,
    }
    rows = rows_of(design, areas)
    tuned = tune(design, rows, ())
    assert best_rates(tuned) == {("dapo", "steps-shift"): 3e-4, ("delta", "steps-shift"): 8e-4}
    assert [one.at_edge for one in tuned] == [False, True]
    # A rate at which a run broke is not chosen; while a run is still to come nothing is.
    lost = [row for row in rows if (row["recipe"], row["rate"], row["seed"]) != ("dapo", 3e-4, TUNING_SEEDS_FROM)]
    assert best_rates(tune(design, lost, ())) == {("delta", "steps-shift"): 8e-4}
    assert best_rates(tune(design, lost, {("dapo", "steps-shift", 3e-4, TUNING_SEEDS_FROM)}))["dapo", "steps-shift"] == 8e-4


def test_the_best_by_their_best_rates_go_on_beside_those_who_always_do() -> None:
    names = ("dapo", "delta", "grpo", "reinforce++", "rloo", "random-lambda")
    bases = {base: base for base in ("steps-shift", "steps-sharpen")}
    rates = (1e-4, 3e-4)
    design = make_design(
        [arm(name) for name in names],
        "dapo",
        bases,
        seeds=2,
        first_seed=0,
        rates=rates,
        tune_seeds=2,
        finalists=1,
        always=["rloo"],
    )
    areas = {(name, rate): 0.1 for name in names for rate in rates}
    # delta is best in the mean of both rates, grpo at its best one.
    areas |= {("delta", 1e-4): 0.3, ("delta", 3e-4): 0.3, ("grpo", 3e-4): 0.4}
    rows = rows_of(design, areas)
    tuned = tune(design, rows, ())
    standing = standings(design, rows, tuned)
    assert [one.recipe for one in standing][:2] == ["grpo", "delta"]
    assert standing[0].area == pytest.approx(0.4)
    assert advancing_recipes(standing) == {"grpo", "dapo", "rloo", "random-lambda"}
    reported = reported_runs(design, best_rates(tuned), advancing_recipes(standing))
    assert {run.arm for run in reported} == {"grpo", "dapo", "rloo", "random-lambda"}
    assert len(tuning_runs(design)) + len(reported) == number_of_runs(design)
    # Who broke at every rate of one base is no finalist, however good on the other; while a run is to come nobody is chosen.
    broken = [row for row in rows if (row["recipe"], row["base"]) != ("grpo", "steps-shift")]
    failed = {("grpo", "steps-shift", rate, seed) for rate in rates for seed in design.tuning_seeds}
    assert advancing_recipes(standings(design, broken, tune(design, broken, failed))) == {"delta", "dapo", "rloo", "random-lambda"}
    assert standings(design, broken, tune(design, broken, ())) == []
    everyone = design._replace(finalists=None, always=())
    assert advancing_recipes(standings(everyone, rows, tuned)) is None


def test_areas_of_finalists_are_over_the_rollouts_that_all_cover() -> None:
    design = make_design(
        [arm("dapo"), arm("delta"), arm("grpo")],
        "dapo",
        {"steps-shift": "steps-shift"},
        seeds=1,
        first_seed=0,
        rates=(1e-4, 3e-4),
        tune_seeds=1,
        finalists=1,
    )
    rows = rows_of(design, {(name, rate): 0.2 for name in ("dapo", "delta", "grpo") for rate in design.rates})
    for row in rows:
        if row["recipe"] == "delta":
            # Three times the rollouts: ahead by its own measure, behind at equal rollouts.
            row["curve"] = [[0, 0.0], [100, 0.1], [300, 1.0]]
    assert advancing_recipes(standings(design, rows, tune(design, rows, ()))) == {"dapo", "grpo"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": 0}, "seeds is 0"),
        ({"finalists": 0, "rates": RATES}, "finalists is 0"),
        ({"finalists": 2, "rates": (3e-4,)}, "chosen by tuning; give several rates"),
        ({"finalists": 2, "rates": RATES, "always": ["dap"]}, "always names 'dap'"),
        ({"always": ["dapo"]}, "give finalists, or leave it out"),
        ({"first_seed": 9_999, "seeds": 2}, "for tuning"),
        ({"rates": (3e-4, 3e-4)}, "more than once"),
        ({"rates": (-1.0,)}, "above 0"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes: dict[str, object], words: str) -> None:
    given_ = {"seeds": 1, "first_seed": 0, "rates": (), "tune_seeds": 1} | changes
    with pytest.raises(ConfigError, match=words):
        make_design([arm("dapo")], "dapo", {"steps-shift": "steps-shift"}, **given_)  # pyright: ignore[reportArgumentType]


def test_a_rate_of_a_recipe_s_own_and_rates_for_all_are_refused_together() -> None:
    with pytest.raises(ConfigError, match=r"'delta' sets optimizer\.learning_rate, but rates sets it for all"):
        refuse_fixed_rates(RATES, ["delta"])
    refuse_fixed_rates((), ["delta"])
    refuse_fixed_rates(RATES, [])
