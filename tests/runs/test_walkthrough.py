"""docs/your-model.md, walked through as it stands: its files are saved under the names it gives, its commands run in order."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "your-model.md"
BLOCK = re.compile(r"`(?P<name>[\w-]+\.\w+)`:\n\n```(?:python|toml)\n(?P<content>.*?)```|```bash\n(?P<commands>.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder it was walked through in, and what each block of commands printed."""
    folder = tmp_path_factory.mktemp("walk")
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    said: list[str] = []
    for block in BLOCK.finditer(PAGE.read_text()):
        if block["name"]:
            (folder / block["name"]).write_text(block["content"])
            continue
        done = subprocess.run(["bash", "-ec", block["commands"]], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block['commands']}\n{done.stdout}\n{done.stderr}"
        said.append(done.stdout)
    return folder, said


def accuracy(folder: Path, when: str) -> float:
    return json.loads((folder / "result.json").read_text())[when]["sampled"]


def test_what_the_page_says_of_each_step_holds(walked: tuple[Path, list[str]]) -> None:
    folder, (_, hard, warm, trained, used, loaded) = walked
    assert "too hard for this model" in hard
    assert "demonstrations" in warm
    assert accuracy(folder / "warm", "before") == 0.0
    assert 0.4 < accuracy(folder / "warm", "after") < 0.9
    assert accuracy(folder / "trained", "before") == accuracy(folder / "warm", "after")
    assert accuracy(folder / "trained", "after") > accuracy(folder / "trained", "before") + 0.08
    assert "Report: trained/report.html" in trained
    assert used.rstrip().endswith("9")
    assert loaded.strip() == "max 3 1 9 2 4:9"


def test_what_it_leaves_can_be_handed_on(walked: tuple[Path, list[str]]) -> None:
    folder, _ = walked
    assert json.loads((folder / "after.json").read_text())["results"][0]["problems"] == 64
    card = (folder / "trained" / "model" / "README.md").read_text()
    assert "task `own`" in card
    assert json.loads((folder / "trained" / "data.json").read_text())["held_out"]["sha256"] in card
