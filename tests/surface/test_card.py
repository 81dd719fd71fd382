"""The folder a run leaves to hand on: a model anybody can load, without the run's state, and a card that says the truth about it."""

import json
import os
from pathlib import Path

import pytest
import torch
import yaml
from markdown_it import MarkdownIt
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.runs import run, small_config
from fault.command import SMALL, assert_refused, tokencredit
from tokencredit.commands.train import run as command
from tokencredit.errors import StorageError
from tokencredit.models import model_folder
from tokencredit.report.export import export_model
from tokencredit.report.model_card import base_license, base_name, block, code, plain
from tokencredit.storage import atomic
from tokencredit.storage.checkpoints import best_model
from tokencredit.storage.manifest import damage

RUN_STATE = {"optimizer.safetensors", "generators.safetensors", "state.json", "clocks.json"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(small_config(steps=2, seed=3, evaluation={"every": 1}), folder)
    return folder


@pytest.fixture(scope="module")
def exported(trained: Path) -> Path:
    return export_model(trained)


def header(folder: Path) -> dict:
    return yaml.safe_load((folder / "README.md").read_text().removeprefix("---\n").split("\n---\n")[0])


def test_the_exported_model_is_the_best_checkpoint(trained: Path, exported: Path) -> None:
    best = best_model(trained)
    assert best is not None
    names = {path.name for path in exported.iterdir()}
    assert names == {path.name for path in best.iterdir()} - RUN_STATE | {"README.md", "run-config.toml"}
    assert damage(exported) is None
    ours, theirs = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (exported, best))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert AutoTokenizer.from_pretrained(exported).encode("1+1=")
    assert os.stat(exported / "model.safetensors").st_ino == os.stat(best / "model.safetensors").st_ino
    assert os.stat(exported / "config.json").st_ino != os.stat(best / "config.json").st_ino
    assert model_folder(str(exported)) == exported


def test_the_card_tells_what_was_done(trained: Path, exported: Path) -> None:
    text, result = (exported / "README.md").read_text(), json.loads((trained / "result.json").read_text())
    told = header(exported)
    assert told == {
        "base_model": "steps-shift", "library_name": "transformers", "pipeline_tag": "text-generation",
        "tags": ["tokencredit", "reinforcement-learning"],
    }  # fmt: skip
    for when in ("before", "after"):
        for kind in ("greedy", "sampled", "pass_at_k"):
            assert f"{100 * result[when][kind]:.1f}\u202f%" in text
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    best = result["best_step"]
    assert f"The weights are those after training step {best}, which had the best evaluation." in text
    assert f"were right in {100 * rows[best - 1]['held_out/sampled']:.1f}\u202f% of samples for 16 held-out problems" in text
    for words in (
        "| seed | 3 |",
        "| training steps | 2 |",
        "| rollouts | 48 |",
        "**credit** `delta`",
        "tokencredit train run-config.toml",
        "torch ",
    ):
        assert words in text
    assert (exported / "run-config.toml").read_bytes() == (trained / "config.toml").read_bytes()
    data = json.loads((trained / "data.json").read_text())
    assert data["held_out"]["sha256"] in text


def test_a_run_that_goes_on_rewrites_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the command, as people do it; nothing is left of the old one."""
    monkeypatch.chdir(tmp_path)
    assert command(["--steps", "1", *SMALL, "--out", "run", "--evaluation.every", "1"]) == 0
    assert "Model: run/model" in capsys.readouterr().out
    assert "for 1 steps" in (tmp_path / "run" / "model" / "README.md").read_text()
    assert command(["--resume", "run", "--steps", "2", "--no-report"]) == 0
    assert "for 2 steps" in (tmp_path / "run" / "model" / "README.md").read_text()
    assert damage(tmp_path / "run" / "model") is None
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith("model.")]


def test_export_writes_the_same_elsewhere_and_never_over_something(trained: Path, exported: Path) -> None:
    done = tokencredit("export", "run", "--out", "handed", cwd=trained.parent)
    assert done.returncode == 0, done.stderr
    handed = trained.parent / "handed"
    assert {path.name: path.read_bytes() for path in handed.iterdir()} == {path.name: path.read_bytes() for path in exported.iterdir()}
    assert_refused(["export", "run", "--out", "handed"], "exists and is not empty", trained.parent)
    assert_refused(["export", "handed"], "not a run folder", trained.parent)


def test_a_run_without_a_checkpoint_has_no_model(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "bare" / "checkpoints").mkdir(parents=True)
    (tmp_path / "bare" / "config.toml").write_bytes((trained / "config.toml").read_bytes())
    assert_refused(["export", "bare"], "has no complete checkpoint", tmp_path)


def test_files_are_copied_where_they_cannot_be_linked(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError("another device")

    monkeypatch.setattr(os, "link", no_links)
    folder = export_model(trained, tmp_path / "copied")
    assert damage(folder) is None
    assert os.stat(folder / "model.safetensors").st_nlink == 1


def test_a_failed_export_leaves_the_old_one_whole(trained: Path, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (exported / "README.md").read_bytes()

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "write_manifest", full)
    monkeypatch.setattr("tokencredit.report.export.shutil.copyfile", lambda *_: full(exported))
    with pytest.raises(StorageError, match="No space left"):
        export_model(trained)
    assert damage(exported) is None
    assert (exported / "README.md").read_bytes() == before
    assert not (trained / "model.partial").exists()


def test_a_run_is_no_failure_because_its_model_cannot_be_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise StorageError("no space")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tokencredit.report.export.export_model", full)
    assert command(["--steps", "1", *SMALL, "--out", "run"]) == 0
    assert "The model could not be exported: no space\nTry again with: tokencredit export run" in capsys.readouterr().err
    assert (tmp_path / "run" / "result.json").exists()


HOSTILE = '# x <script>x</script> [a](http://b) ![i](j) **bold** `code` | cell \n# heading\n---\n\x1b[2J "q": \u202e <http://c> &amp;'


def test_text_of_others_stays_text(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoints").symlink_to(trained / "checkpoints")
    for name in ("metrics.jsonl", "result.json", "env.json"):
        (folder / name).write_bytes((trained / name).read_bytes())
    config = (trained / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('model = "steps-shift"', f"model = {json.dumps(HOSTILE)}"))
    (folder / "events.jsonl").write_text(json.dumps({"step": 1, "kind": "warning", "message": HOSTILE}) + "\n")
    (folder / "data.json").write_text(json.dumps({"files": {HOSTILE: HOSTILE}}))
    text = (export_model(folder) / "README.md").read_text()
    assert text.isprintable() or not {"\x1b", "\u202e"} & set(text)
    assert header(folder / "model")["base_model"] == Path(HOSTILE).name
    tokens = MarkdownIt("gfm-like", {"html": True, "linkify": False}).parse(text.split("\n---\n", 1)[1])
    kinds = {token.type for top in tokens for token in (top, *(top.children or ()))}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "hr"}
    headings = [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"]
    assert headings == ["run", "Accuracy on held-out problems", "Use", "Training", "Recipe", "Data", "Reproduce", "Limitations"]
    rows = [token for token in tokens if token.type == "td_open"]
    assert len(rows) == 6 * 5 + 2 * text.count("| `task.") + 2 * 5 + 2
    warned = [token.content for token in tokens if token.type == "inline" and "cell" in token.content and "script" in token.content]
    assert len(warned) == 3


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a*b_c`d", r"a\*b\_c\`d"), ("<b>&amp;", r"\<b\>\&amp;"), ("[x](y)", r"\[x\](y)"), ("a|b", r"a\|b"), ("# no", r"\# no"),
        ("1. no", r"1\. no"), ("- no", r"\- no"), ("a\nb", "a⏎b"), ("http://x", r"http\://x"), ("www.x", r"www\.x"),
        ("0.5 a-b", "0\\.5 a-b"),
    ],
)  # fmt: skip
def test_markup_is_escaped(text: str, escaped: str) -> None:
    assert plain(text) == escaped


def test_fences_are_longer_than_what_they_hold() -> None:
    assert code("a``b") == "```a``b```"
    assert code("`a") == "`` `a ``"
    assert code("a|b") == r"`a\|b`"
    assert block("x\n````\ny").splitlines()[0] == "`````"


def test_a_license_is_told_only_where_the_base_states_one(tmp_path: Path) -> None:
    assert base_license(str(tmp_path)) is None
    (tmp_path / "README.md").write_text("license: mit\n")
    assert base_license(str(tmp_path)) is None
    (tmp_path / "README.md").write_text("---\ntags: [x]\nlicense: apache-2.0\n---\nlicense: mit\n")
    assert base_license(str(tmp_path)) == "apache-2.0"
    (tmp_path / "README.md").write_text('---\nlicense: "evil: yes\n  - x"\n---\n')
    assert base_license(str(tmp_path)) is None


def test_where_a_model_lay_is_not_told(tmp_path: Path) -> None:
    assert base_name("/home/ada/models/mine") == "mine"
    assert base_name("owner/name@abc123") == "owner/name"
    assert base_name("smollm2") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert base_name("steps-shift") == "steps-shift"
