"""Disks and folders: full, read-only, shared by two runs. A clear word, exit code 4, nothing lost, and the next start goes on."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.runs import files_of, newest, run, small_config
from fault.command import SMALL, tokencredit
from tokencredit.errors import ConfigError, StorageError
from tokencredit.storage.atomic import atomic_folder, atomic_write, remove_folder
from tokencredit.storage.lock import locked
from tokencredit.storage.manifest import damage
from tokencredit.storage.run_dir import RunDir

TRAIN = ["train", "--out", "run", "--steps", "6", "--save-every", "1", "--tokens-every", "1", *SMALL]


def sandboxed(place: Path, mount: list[str], arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """The real command where `place` is mounted as told: a disk of few bytes, or one that is read-only."""
    bwrap = shutil.which("bwrap")
    assert bwrap is not None, "bubblewrap is needed: install Debian's package bubblewrap"
    command = [bwrap, "--bind", "/", "/", "--dev-bind", "/dev", "/dev", *mount, "--chdir", str(place), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.bubblewrap
def test_a_full_disk_ends_in_words_and_the_run_goes_on_when_there_is_space(tmp_path: Path) -> None:
    """On a real file system of 3 MiB: what was whole when it filled up is copied out, and resumed."""
    place, rescued = tmp_path / "disk", tmp_path / "rescued"
    place.mkdir()
    rescued.mkdir()
    script = f"{sys.executable} -m tokencredit {' '.join(TRAIN)}; code=$?; cp -r run {rescued}/; exit $code"
    done = sandboxed(place, ["--size", str(3 * 2**20), "--tmpfs", str(place)], ["sh", "-c", script])
    assert done.returncode == 4, done.stdout + done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    saved = newest(rescued / "run")
    assert damage(saved) is None
    said = tokencredit("train", "--resume", "run", "--no-report", cwd=rescued)
    assert said.returncode == 0, said.stderr
    assert [json.loads(line)["step"] for line in (rescued / "run" / "metrics.jsonl").read_text().splitlines()] == list(range(1, 7))


@pytest.mark.bubblewrap
def test_a_folder_that_is_read_only_is_refused_in_words(tmp_path: Path) -> None:
    run(small_config(), tmp_path / "run", stop_after=2)
    before = files_of(tmp_path / "run")
    read_only = ["--ro-bind", str(tmp_path), str(tmp_path)]
    for arguments, code in ((["--resume", "run"], 4), (["--out", "other", *SMALL], 2)):
        done = sandboxed(tmp_path, read_only, [sys.executable, "-m", "tokencredit", "train", *arguments])
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert "Read-only file system" in done.stderr or "not writable" in done.stderr
    assert files_of(tmp_path / "run") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def failing(code: int) -> Any:
    def fail(*given: Any, **named: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_in_a_save_leaves_the_checkpoint_before(tmp_path: Path, code: int) -> None:
    config = small_config()
    run(config, tmp_path / "whole")
    run(config, tmp_path / "run", stop_after=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokencredit.storage.atomic.write_manifest", failing(code))
        with pytest.raises(StorageError, match=os.strerror(code)):
            run(config, tmp_path / "run", resume=True)
    assert newest(tmp_path / "run").name == "step-000002"
    assert not list((tmp_path / "run" / "checkpoints").glob("*.partial"))
    run(config, tmp_path / "run", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "run")


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.toml"
    atomic_write(path, "old")
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(StorageError, match=r"config.toml cannot be written: No space left on device"):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_published_whole_or_not_at_all(tmp_path: Path) -> None:
    def half_write() -> None:
        with atomic_folder(tmp_path / "made") as fresh:
            (fresh / "one").write_text("1")
            assert not (tmp_path / "made").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half_write()
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(tmp_path / "made") as fresh:
        (fresh / "one").write_text("1")
    assert damage(tmp_path / "made") is None
    remove_folder(tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_everything_is_on_the_disk_before_the_name_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noting_fsync(handle: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def noting_rename(path: Path, target: Path) -> Path:
        order.append(f"{path.name} -> {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "rename", noting_rename)
    with atomic_folder(tmp_path / "made") as fresh:
        (fresh / "sub").mkdir()
        (fresh / "sub" / "one").write_text("1")
    assert set(order[:4]) == {"one", "sub", "manifest.json", "made.partial"}
    assert order[4:] == ["made.partial -> made", tmp_path.name]


# --- two runs in one folder


def test_a_folder_in_use_is_refused_and_named(tmp_path: Path) -> None:
    run(small_config(), tmp_path / "run", stop_after=2)
    before = files_of(tmp_path / "run")
    with locked(tmp_path / "run"):
        done = tokencredit("train", "--resume", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert f"run folder run is in use by process {os.getpid()} on " in done.stderr
    assert files_of(tmp_path / "run") == before
    assert tokencredit("train", "--resume", "run", "--no-report", cwd=tmp_path).returncode == 0


def test_the_lock_of_a_killed_run_does_not_stand_in_the_way(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from tokencredit.storage.lock import locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"in use by process {process.pid}"):
        locked(tmp_path).__enter__()
    process.kill()
    process.communicate()
    with locked(tmp_path):
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} ")


def test_two_runs_that_begin_in_one_folder_do_not_mix(tmp_path: Path) -> None:
    RunDir(tmp_path / "run").create("seed = 1\n")
    with pytest.raises(ConfigError, match=r"run folder .* cannot be created"):
        RunDir(tmp_path / "run").create("seed = 2\n")
    assert (tmp_path / "run" / "config.toml").read_text() == "seed = 1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# --- lines cut short


def interrupted(folder: Path) -> None:
    run(small_config(), folder, stop_after=2)


@pytest.mark.parametrize("left", ['{"step": 3, "sco', "\x00\x00\x00\x00", '{"step": 3}\n{"step"'])
def test_a_line_cut_short_by_a_crash_is_written_again(tmp_path: Path, left: str) -> None:
    run(small_config(), tmp_path / "whole")
    interrupted(tmp_path / "cut")
    for name in ("metrics.jsonl", "plans.jsonl", "timing.jsonl"):
        with (tmp_path / "cut" / name).open("a") as file:
            file.write(left)
    run(small_config(), tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_a_damaged_line_before_the_last_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    interrupted(tmp_path / "cut")
    metrics = tmp_path / "cut" / "metrics.jsonl"
    metrics.write_text("rubbish\n" + metrics.read_text())
    before = files_of(tmp_path / "cut")
    done = tokencredit("train", "--resume", "cut", cwd=tmp_path)
    assert done.returncode == 2
    assert "metrics.jsonl is damaged: line 1 is not JSON" in done.stderr
    assert files_of(tmp_path / "cut") == before
