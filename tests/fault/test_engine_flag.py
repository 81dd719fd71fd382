"""Choosing an engine: TRL that is missing or too old is refused in words and nothing is written; a run remembers its engine."""

from pathlib import Path

import pytest

from fault.command import SMALL, assert_refused, tokencredit, tokencredit_with
from tokencredit.commands.flags import parse_train
from tokencredit.config.resolve import read_toml, resolve, to_toml

MISSING = "trl is not installed; tokencredit works with trl >=1.15,<2 (tested on 1.16.0): pip install 'tokencredit[trl]'"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (None, MISSING),
        ("1.14.0", "trl 1.14.0 is installed, but tokencredit works with trl >=1.15,<2 (tested on 1.16.0)"),
        ("2.0.0", "trl 2.0.0 is installed, but tokencredit works with trl >=1.15,<2 (tested on 1.16.0)"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_without_a_trl_that_works_nothing_is_written(tmp_path: Path, version: str | None, words: str, more: list[str]) -> None:
    done = tokencredit_with("trl", version, "train", "--engine", "trl", "--out", "run", *more, *SMALL, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == f"tokencredit: {words}"
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_a_file_may_name_the_engine_and_a_flag_another(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('engine = "trl"\n')
    done = tokencredit_with("trl", None, "train", "mine.toml", "--out", "run", *SMALL, cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (2, f"tokencredit: {MISSING}")
    other = tokencredit_with("trl", None, "train", "mine.toml", "--engine", "local", "--dry-run", cwd=tmp_path)
    assert other.returncode == 0, other.stderr
    assert 'engine = "local"' in other.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["mine.toml"]


def test_resume_goes_on_with_the_engine_of_the_run(tmp_path: Path) -> None:
    """A folder that the local engine could resume, but for what its config.toml says."""
    done = tokencredit("train", "--steps", "1", "--out", "run", *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "run" / "result.json").unlink()
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('engine = "local"', 'engine = "trl"'))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    resumed = tokencredit_with("trl", None, "train", "--resume", "run", cwd=tmp_path)
    assert (resumed.returncode, resumed.stderr.strip()) == (2, f"tokencredit: {MISSING}")
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("name", ["verl", "TRL", ""])
def test_an_unknown_engine_is_refused(tmp_path: Path, name: str) -> None:
    assert_refused(["train", "--engine", name, "--out", "run"], f"engine is {name!r}: Input should be 'local' or 'trl'", tmp_path)
    (tmp_path / "mine.toml").write_text(f'engine = "{name}"\n')
    assert_refused(["train", "mine.toml", "--out", "run"], f"engine is {name!r}: Input should be 'local' or 'trl'", tmp_path)


def test_an_engine_that_is_no_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('engine = ["trl"]\n')
    assert_refused(["train", "mine.toml", "--out", "run"], "engine is ['trl']: Input should be 'local' or 'trl'", tmp_path)


def test_looks_are_off_by_default_only_where_the_engine_takes_none(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('engine = "trl"\n')
    (tmp_path / "looking.toml").write_text("[diagnose]\nevery = 20\n")
    mine, looking = str(tmp_path / "mine.toml"), str(tmp_path / "looking.toml")

    def every(*arguments: str) -> int:
        return parse_train(arguments).config.diagnose.every

    assert every() == 20
    assert every("--engine", "trl") == every("--engine=trl") == every(mine) == 0
    assert every(mine, "--engine", "local") == 20
    assert every("--engine", "trl", "--diagnose.every", "7") == 7
    assert every(looking, "--engine", "trl") == every(mine, looking) == 20


def test_the_engine_is_written_down_and_read_back(tmp_path: Path) -> None:
    config = parse_train(["--engine", "trl"]).config
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert read_toml(tmp_path / "config.toml")["engine"] == "trl"
    assert resolve([read_toml(tmp_path / "config.toml")]) == config


def test_a_step_of_another_engines_run_cannot_be_taken_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(to_toml(resolve([{"engine": "trl"}])))
    words = "run run was trained by trl, whose steps cannot be repeated here; use --model with one of its checkpoints and --rollouts"
    assert_refused(["diagnose", "run", "--step", "1"], words, tmp_path)


def test_the_local_engine_trains_no_other_engines_configuration(tmp_path: Path) -> None:
    from tokencredit import train
    from tokencredit.errors import ConfigError

    with pytest.raises(ConfigError, match=r"engine is 'trl', .* call tokencredit\.integrations\.trl\.run\.train"):
        train(resolve([{"engine": "trl"}]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
