"""The report without a browser: escaping, policy, budget, intervals, what happens to missing and damaged files, `show`."""

import hashlib
import json
import math
import re
import subprocess
import sys
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.color import Color
from rich.text import Text

from made_up.run import make_run
from tokencredit.cli import run as command
from tokencredit.diagnose.cancellation import cancellation
from tokencredit.diagnose.flips import flips
from tokencredit.diagnose.table import TokenTable
from tokencredit.errors import ConfigError
from tokencredit.report import write_report
from tokencredit.report.blocks import page_json, token_block
from tokencredit.report.charts import themed
from tokencredit.report.curves import curves
from tokencredit.report.format import hundreds
from tokencredit.report.page import render
from tokencredit.report.run_reader import Run
from tokencredit.report.selection import choose, fair_part, outside_in
from tokencredit.report.terminal import choose_prompt, choose_step, token_view
from tokencredit.report.token_view import read_step
from tokencredit.stats import Z, wilson
from tokencredit.text import brief, sanitize


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "made-up")


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return render([Run(folder)])


class Reader(HTMLParser):
    """Every start tag with its attributes, and the text of style and script elements."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"style": [], "script": []}
        self.open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open = tag if tag == "style" or (tag == "script" and "type" not in dict(attrs)) else ""

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open:
            self.inside[self.open].append(data)


def test_the_policy_names_the_hashes_of_exactly_what_is_inline(page: str) -> None:
    read = Reader(page)
    policy = next(str(attributes["content"]) for tag, attributes in read.tags if tag == "meta" and "http-equiv" in attributes)
    for kind, directive in (("style", "style-src"), ("script", "script-src")):
        (text,) = read.inside[kind]
        digest = b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_no_element_carries_style_handlers_or_addresses(page: str) -> None:
    for tag, attributes in Reader(page).tags:
        assert not {name for name in attributes if name == "style" or name.startswith("on") or name in ("src", "action", "xlink:href")}, tag
        assert (attributes.get("href") or "#").startswith("#")


@given(st.text(st.characters(codec="utf-8")))
def test_data_can_never_be_markup_and_survives_the_journey(text: str) -> None:
    told = page_json({"text": text})
    assert not set(told) & set("<>&\u2028\u2029")
    assert json.loads(told) == {"text": text}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain <b>", "plain <b>"),
        ("a\nb\tc\rd\x00e\x1bf\x7f", "a⏎b⇥c␍d␀e␛f␡"),
        ("\u202eabc\u2066", "⟨U+202E⟩abc⟨U+2066⟩"),
        ("\u2028\u200b\ufeff\ud800\U000e0041", "⟨U+2028⟩⟨U+200B⟩⟨U+FEFF⟩⟨U+D800⟩⟨U+E0041⟩"),
        ("\u0301", "◌\u0301"),
        ("e\u0301\u0301\u0301\u0301", "e\u0301\u0301⟨U+0301⟩⟨U+0301⟩"),
        ("\x9b31m\u3164\u2800", "⟨U+009B⟩31m⟨U+3164⟩⟨U+2800⟩"),
        ("שלום 漢字 é", "שלום 漢字 é"),
    ],
)
def test_what_hides_or_moves_text_is_made_visible(text: str, shown: str) -> None:
    assert sanitize(text) == shown


@given(st.text())
def test_visible_text_can_be_written_and_holds_no_control(text: str) -> None:
    shown = sanitize(text)
    shown.encode()
    assert not re.search("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]", shown)


@given(st.text(), st.integers(1, 30))
def test_a_brief_text_is_its_beginning_and_says_what_is_missing(text: str, longest: int) -> None:
    shown = brief(text, longest)
    if len(text) <= longest:
        assert shown == sanitize(text)
    else:
        assert shown == f"{sanitize(text[:longest])}… ({len(text) - longest:,} more characters)"


def by_bisection(share: float, problems: int) -> tuple[float, float]:
    """The two p at which |share - p| is exactly z standard errors of p."""

    def outside(p: float) -> bool:
        return abs(share - p) > Z * math.sqrt(p * (1 - p) / problems)

    ends = []
    for far in (0.0, 1.0):
        near = share
        if not outside(far) and far == share:
            ends.append(far)
            continue
        for _ in range(200):
            middle = (far + near) / 2
            far, near = (middle, near) if outside(middle) else (far, middle)
        ends.append(near)
    return ends[0], ends[1]


@given(st.integers(1, 3000), st.data())
def test_the_interval_is_where_the_share_would_not_surprise(problems: int, data: st.DataObject) -> None:
    share = data.draw(st.integers(0, problems)) / problems
    assert wilson(share, problems) == pytest.approx(by_bisection(share, problems), abs=1e-9)


@pytest.mark.mutants
def test_the_oracle_rejects_the_plain_normal_interval() -> None:
    half = Z * math.sqrt(0.9 * 0.1 / 20)
    assert by_bisection(0.9, 20) != pytest.approx((0.9 - half, 0.9 + half), abs=1e-3)


def test_a_known_interval() -> None:
    """10 of 10: low end is n / (n + z^2)."""
    assert wilson(1.0, 10) == pytest.approx((10 / (10 + Z**2), 1.0))


@given(st.sets(st.integers(0, 500), min_size=1, max_size=40))
def test_steps_come_last_first_and_then_where_the_gap_is_widest(numbers: set[int]) -> None:
    steps = sorted(numbers)
    order = list(outside_in(steps))
    assert sorted(order) == steps
    assert order[:2] == [steps[-1], steps[0]][: len(steps)]
    for count in range(2, len(order)):
        reach = {step: min(abs(step - before) for before in order[:count]) for step in order[count:]}
        assert reach[order[count]] == max(reach.values())


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(8, 4000))
def test_the_fair_part_is_the_largest_that_fits(sizes: list[int], budget: int) -> None:
    part = fair_part(sizes, budget)
    assert sum(min(size, part) for size in sizes) <= budget
    assert part >= max(sizes) or sum(min(size, part + 1) for size in sizes) > budget


@pytest.mark.parametrize("budget", [60_000, 250_000, 1_000_000])
def test_what_is_chosen_stays_in_the_budget_and_keeps_first_and_last(folder: Path, budget: int) -> None:
    shown = choose(Run(folder), budget)
    assert sum(len(text.encode()) for blocks in (shown.tokens, shown.about) for text in blocks.values()) <= budget
    assert {1, 20} <= set(shown.tokens)
    assert sorted([*shown.about, *shown.left_out]) == [1, 10, 20]
    assert bool(shown.some_prompts) == (budget < 1_000_000)
    responses = json.loads(shown.tokens[20])["responses"]
    assert (responses["length"] != responses["count"]) == (budget == 60_000)


def test_blocks_hold_every_number_rounded_and_in_its_place(folder: Path) -> None:
    tokens = read_step(Run(folder), 20)
    block = json.loads(page_json(token_block(tokens)))
    order = [at for siblings in tokens.by_group.values() for one in siblings for at in range(one.start, one.stop)]
    assert [block["texts"][place] for place in block["tokens"]["text"]] == [tokens.columns["text"][at] for at in order]
    assert block["tokens"]["credit"] == pytest.approx([tokens.columns["credit"][at] for at in order], rel=5e-4)
    assert "behavior_logp" not in block["tokens"]
    responses = [one for siblings in tokens.by_group.values() for one in siblings]
    for name in ("change_step", "raw_mini_negative"):
        cover, values = block["evidence"][name]
        places = [at for place in block["covers"][cover] for at in range(responses[place].start, responses[place].stop)]
        assert values == pytest.approx([tokens.evidence[name][at] for at in places], rel=5e-3)
        assert {at for at, value in enumerate(tokens.evidence[name]) if value is not None} == set(places)


def test_json_lines_and_parquet_give_the_same_page(tmp_path: Path) -> None:
    pages = [render([Run(make_run(tmp_path / kind / "run", parquet_files=kind == "parquet"))]) for kind in ("parquet", "jsonl")]
    assert pages[0] == pages[1]


def test_headline_numbers_are_the_runs(page: str) -> None:
    text = re.sub(r"<[^>]+>|\s+", " ", page.split('id="curves"')[0])
    for words in ("25.0 %", "95.0 %", "512 problems", "1,280", "29 s", "20 training steps"):
        assert words in text, words
    low, high = wilson(0.95, 512)
    assert f"{100 * low:.1f}–{100 * high:.1f} %" in text


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    page = render([Run(make_run(tmp_path / "run", finished=False))])
    assert re.search(r"Not finished:</strong> 20 of 20 training steps so far", page)
    assert "step 5" in page
    for checkpoint, words in (
        ("damaged-step-000010", "restart it (it has no checkpoint yet) with:"),
        ("step-000010.partial", "restart it (it has no checkpoint yet) with:"),
        ("step-000010", "If this run is not running any more, resume it with:"),
    ):
        (tmp_path / "run" / "checkpoints" / checkpoint).mkdir(parents=True)
        page = render([Run(tmp_path / "run")])
        assert words in page
        assert "tokencredit train --resume run<" in page


def test_a_finished_run_is_not_to_be_continued(page: str) -> None:
    assert "20 training steps from" in page
    assert "--resume" not in page


def test_every_file_but_the_config_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('recipe = "grpo"\n')
    page = render([Run(tmp_path)])
    assert "nothing was trained in it" in page
    assert "tokencredit train" in page


def test_methods_give_origins_and_the_command(page: str) -> None:
    text = re.sub(r"\s+", " ", page.split('id="methods"')[1])
    assert "tokencredit train made-up/config.toml" in text
    assert "--recipe delta --task.type steps --steps 20 --sampling.prompts 8" in text
    assert re.search(r"<code>lam_min</code></th><td>0\.8</td><td class=\"origin\">paper and released code<", text)
    assert re.search(r"<code>steps</code></th><td>20</td><td class=\"origin own\">set for this run<", text)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", b"recipe = \n"),
        ("result.json", b'{"recipe": '),
        ("result.json", b"[1]"),
        ("env.json", b"\xff\xfe"),
        ("metrics.jsonl", b'{"step": 1}\nnot json\n{"step": 3}\n'),
        ("timing.jsonl", b'{"seconds": {}}\n'),
        ("tokens/step-000020.parquet", b"PAR1 and no more"),
        ("findings/step-000020.parquet", b""),
        ("findings/step-000020.json", b"{"),
        ("findings/step-000020.json", b'{"findings": [{"name": "flips"}]}'),
        ("plans.jsonl", b'{"step": 20}\n'),
        ("events.jsonl", b'{"step": 20, "kind": "warning"}\n'),
        ("events.jsonl", b'{"step": "20", "kind": "warning", "message": "m"}\n'),
        ("events.jsonl", b"[" * 100_000 + b"\n"),
        ("resumes.jsonl", b'{"changed": {}}\n'),
        ("metrics.jsonl", b'{"step": "1"}\n'),
        ("findings/step-000020.json", b'{"findings": [{"name": 1, "note": "", "numbers": {}, "tables": {}}]}'),
        ("findings/step-000020.json", b'{"findings": [{"name": "n", "note": "", "numbers": {}, "tables": {"t": [1]}}]}'),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_written(tmp_path: Path, name: str, content: bytes) -> None:
    folder = make_run(tmp_path / "run")
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(str(folder / name))):
        write_report([folder], tmp_path / "page.html")
    assert not list(tmp_path.glob("page.html*"))


def test_what_is_no_number_is_left_blank(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    finding = {
        "name": "odd",
        "note": "Odd.",
        "numbers": {"far": math.inf, "none": math.nan, "near": 1.23456},
        "tables": {"t": [{"a": -math.inf}]},
    }
    (folder / "findings" / "step-000020.json").write_text(json.dumps({"findings": [finding]}))
    about = json.loads(choose(Run(folder), 1_000_000).about[20])
    assert about["findings"] == [
        {"name": "odd", "note": "Odd.", "numbers": {"far": None, "none": None, "near": 1.23456}, "tables": {"t": [{"a": None}]}}
    ]
    assert '"odd":{"near":[[20,1.23456]]}' in render([Run(folder)])


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 21, "rew')
    assert Run(folder).metrics[-1]["step"] == 20


def test_without_the_chart_libraries_the_page_says_so(folder: Path, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    without = render([Run(folder)])
    assert "No charts" in without
    assert 'class="chart"' not in without
    assert page.count('class="chart"') >= 8
    assert "25.0 % at step 0, 95.0 % at step 20" in without


def test_charts_keep_shapes_and_lose_everything_else() -> None:
    drawn = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" onload="x()"><script>x()</script><style>y</style>'
        '<g style="fill:red"><path d="M0,0L1.23456,2" stroke="#010000" fill="#ff0000"/><text fill="#020100">&lt;b&gt;</text></g></svg>'
    )
    cleaned = themed(drawn, {"#010000": "series-0", "#020100": "soft"})
    assert 'd="M0,0L1.2,2"' in cleaned
    assert 'class="stroke-series-0"' in cleaned
    assert 'class="fill-soft">&lt;b&gt;<' in cleaned
    assert not re.search("script|style|onload|#ff0000|x\\(\\)", cleaned)


def test_asking_for_the_package_loads_nothing_heavy() -> None:
    """`train` imports tokencredit.report on machines without jinja2, altair and pyarrow."""
    heavy = ("jinja2", "altair", "vl_convert", "pyarrow", "torch")
    code = f"import sys, tokencredit.report, tokencredit.report.terminal; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_panels_read_keys_a_diagnosis_writes() -> None:
    """Names that the page's script looks up, in findings made by the diagnosis itself."""
    script = (Path(__file__).resolve().parents[2] / "src/tokencredit/report/assets/findings.js").read_text()
    count = 12
    numbers = torch.linspace(-1, 1, count, dtype=torch.float64)
    table = TokenTable(
        row=torch.arange(count) // 3,
        group=torch.arange(count) // 6,
        position=torch.arange(count) % 3,
        token=torch.arange(count) % 2,
        text=("a", "b") * 6,
        token_class=("result", "other") * 6,
        logp=-torch.rand(count).double(),
        entropy=torch.rand(count).double(),
        credit=numbers,
        advantage=numbers,
        score=(numbers > 0).double(),
        optimizer_step=torch.zeros(count, dtype=torch.long),
    )
    found = {
        "flips": flips(table, numbers, numbers * 2),
        "cancellation": cancellation(table, numbers, -numbers / 2, numbers, -numbers).finding,
    }
    for name, finding in found.items():
        entry = re.search(rf"\n  {name}: \{{.*?\n  \}},", script, re.DOTALL)
        assert entry is not None
        for key in re.findall(r'\["([a-z_/]+)", "', entry[0]):
            assert key in finding.numbers
        for drawn in re.findall(r'drawn: \["([a-z_]+)"\]', entry[0]):
            assert drawn in finding.tables
    assert {"horizon", "band", "side", "tokens", "boosted", "suppressed", "unchanged"} <= set(found["flips"].tables["matrix"][0])
    assert {"token_class", "mass", "mini_mass"} <= set(found["cancellation"].tables["by_class"][0])
    assert {"direction", "text", "tokens", "mean_effect"} <= set(found["cancellation"].tables["amplified_and_damped"][0])


def styles(part: Text) -> list[tuple[str, str]]:
    return [(part.plain[span.start : span.end], str(span.style)) for span in part.spans]


def test_show_prints_every_response_coloured_by_sign(folder: Path) -> None:
    tokens = choose_step(Run(folder), None)
    assert tokens.step == 20
    group = choose_prompt(tokens, None, "credit")
    assert {"right", "wrong"} <= {sibling.verdict for sibling in tokens.by_group[group]}
    title, lines, legend = token_view(tokens, group, "credit")
    assert tokens.prompt(group) in str(title)
    cells = list(lines.columns[1].cells)
    assert len(cells) == 8
    for sibling, cell in zip(tokens.by_group[group], cells, strict=True):
        assert cell.plain == "".join(tokens.columns["text"][sibling.start : sibling.stop])
        for (_, style), credit in zip(styles(cell), tokens.columns["credit"][sibling.start : sibling.stop], strict=True):
            red, _, blue = Color.parse(style.split(" on ")[1]).triplet or (0, 0, 0)
            assert (blue > red) == (credit > 0)
    assert "credit" in str(legend)


def test_show_prints_no_control_and_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Colours are off where the output is captured: any escape left in it is the model's."""
    texts = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r\x08", "[red]x[/red]", "[/nothing]", "\u202e", "\x00"]
    folder = make_run(tmp_path / "run", token_steps=(1,), texts=texts)
    for by in ("credit", "entropy"):
        assert command(["show", str(folder), "--prompt", "0", "--by", by]) == 0
        said = capsys.readouterr().out
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said)
        assert "␛[2J␛]0;title␇⟨U+009B⟩31m␍␈[red]x[/red][/nothing]⟨U+202E⟩␀" in said
        assert said.startswith("step 1, prompt 0  ␛[2J\n")


def test_show_hides_nothing_hostile(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path / "run", texts=["\x1b[2Jgone", "\u202eback", "[red]"]))
    _, lines, _ = token_view(choose_step(run, 1), 0, "change")
    assert next(iter(lines.columns[1].cells)).plain == "␛[2Jgone⟨U+202E⟩back[red]"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--step", "7"], "step 7 has no tokens; steps with tokens: 1, 10, 20"),
        (["--prompt", "9"], "prompt 9 is not at step 20; prompts there: 0-7"),
    ],
)
def test_show_names_what_there_is(folder: Path, flags: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        command(["show", str(folder), *flags])


def test_show_of_what_was_not_measured(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", looked_at=0)
    with pytest.raises(ConfigError, match=r"by 'change' was not recorded at step 20; recorded: credit, coefficient, entropy"):
        command(["show", str(folder), "--by", "change"])


def test_show_takes_a_prompt_that_has_the_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "run")
    tokens = choose_step(Run(folder), None)
    having = {tokens.columns["group"][at] for at, value in enumerate(tokens.evidence["predicted_step"]) if value is not None}
    assert choose_prompt(tokens, None, "predicted") in having == {0, 1}
    assert command(["show", str(folder), "--by", "predicted", "--prompt", "5"]) == 0
    said = capsys.readouterr().out
    assert "No token of prompt 5 has a predicted change of log-prob; prompts that have one: 0-1." in said
    assert "+0" not in said.splitlines()[-1]


def test_a_diagnosis_names_its_subject_and_its_own_command(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('recipe = "grpo"\n')
    told = {"command": "tokencredit diagnose --model m --rollouts <r>.parquet", "subject": "rollouts <r>.parquet"}
    (tmp_path / "diagnosis.json").write_text(json.dumps(told))
    page = render([Run(tmp_path)])
    assert "A diagnosis of <bdi>rollouts &lt;r&gt;.parquet</bdi>; nothing was trained in this folder." in page
    assert "<title>grpo on rollouts &lt;r&gt;.parquet ·" in page
    assert "<code>tokencredit diagnose --model m --rollouts &lt;r&gt;.parquet</code>" in page
    assert "tokencredit train" not in page


def test_held_out_captions_say_how_many_problems_each_point_has(folder: Path) -> None:
    greedy, sampled = curves([Run(folder)])[:2]
    for curve in (greedy, sampled):
        assert curve.caption.endswith("; first and last point: 512 problems, between: 256")


def test_curves_tell_of_groups_only_where_there_are_any(tmp_path: Path) -> None:
    titles = {}
    for size in (1, 4):
        (tmp_path / str(size)).mkdir()
        (tmp_path / str(size) / "config.toml").write_text(f"[sampling]\ngroup_size = {size}\n")
        rows = [{"step": step, "score": 0.5, "frac_reward_zero_std": 1.0} for step in (1, 2)]
        (tmp_path / str(size) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        titles[size] = {curve.title for curve in curves([Run(tmp_path / str(size))])}
    assert titles[4] - titles[1] == {"Dead groups"}


@pytest.mark.parametrize(("share", "told"), [(0.0625, "6.3"), (-0.0625, "-6.3"), (0.40651, "40.7"), (0.0, "0.0"), (1.0, "100.0")])
def test_halves_are_rounded_as_the_script_rounds_them(share: float, told: str) -> None:
    assert hundreds(share) == told


def test_help_says_that_a_run_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command(["report", "-h"])
    assert re.search(r"Run folders\. \(required\)", capsys.readouterr().out)


def test_report_writes_into_the_run_folder_or_where_it_is_told(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["report", str(folder)]) == 0
    assert str(folder / "report.html") in capsys.readouterr().out
    assert command(["report", str(folder), str(folder), "--out", str(tmp_path / "both.html")]) == 0
    assert (tmp_path / "both.html").read_text().count('<option value="') == 2
    for wrong, said in (
        ([], "no run"),
        ([str(tmp_path)], "has no config.toml"),
        ([str(folder), "--out", str(tmp_path)], "is a folder"),
    ):
        with pytest.raises(ConfigError, match=said):
            command(["report", *wrong])
