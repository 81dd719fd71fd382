"""A run whose every text is an attack: each place where foreign text reaches the page holds its own name and the same payload."""

import json
from pathlib import Path
from typing import Any

from made_up.run import make_run

MARKUP = (
    "<script>window.pwned=1</script><img src=x onerror=window.pwned=1>\"><svg onload=window.pwned=1>'onfocus='window.pwned=1' "
    "<!--<style>*{display:none}</style></title>javascript:window.pwned=1"
)
TEMPLATE = "{{7*7}}{%raw%}${window.pwned=1}"
MOVING = "\x1b[31m\x1b]0;t\x07\x9b2J\u202egnp\u2066\u2028\u2029\u200b\x00\u3164a\u0301\u0301\u0301\u0301שלום"
LONE = "\ud800"
WITHOUT_SLASH = "<img src=x onerror=window.pwned=1>\u202e\x1b[31mשלום"

PAYLOADS = (
    "</script><script>window.pwned=1</script>", "]]>--></style>", "\\u003cscript>", "__proto__", "constructor", MARKUP, TEMPLATE, MOVING,
    LONE, "[red]x[/red]", "\r\x08\x08", "e" + 9 * "\u0301", "é" * 3, "y" * 100_000,
)  # fmt: skip
"""Tokens of the first prompt."""


class Attack:
    """Hands out hostile texts and remembers them by the place they went to."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def at(self, place: str, *, lone: bool = True) -> str:
        self.texts[place] = f"{place}:{MARKUP}{TEMPLATE}{MOVING}{LONE if lone else ''}"
        return self.texts[place]


def hostile_run(parent: Path, attack: Attack) -> Path:
    """The configuration can be read; model, files, tokens, findings, plan, events and resumes are hostile."""
    name = f"run{WITHOUT_SLASH}"
    attack.texts["run folder"] = name
    folder = make_run(parent / name, token_steps=(1, 5), texts=PAYLOADS, parquet_files=False)
    config = folder / "config.toml"
    model = _toml(attack.at("model", lone=False))
    config.write_text(config.read_text(encoding="utf-8").replace('"steps-shift"', model), encoding="utf-8")
    packages = {attack.at("package"): attack.at("version")}
    environment = {"python": attack.at("python"), "platform": attack.at("platform"), "packages": packages, "commit": attack.at("commit")}
    _json(folder / "env.json", environment)
    result = json.loads((folder / "result.json").read_text())
    _json(
        folder / "result.json",
        result | {"best_step": attack.at("best step"), "seconds": {attack.at("stage of the result"): 3.0, "odd": "x"}},
    )
    del attack.texts["best step"]
    rows = _rows(folder / "metrics.jsonl")
    metric = attack.at("metric")
    del attack.texts["metric"]
    _lines(
        folder / "metrics.jsonl", [row | {metric: metric, "entropy": metric if row["step"] == 2 else 0.1, "ungraded": 1} for row in rows]
    )
    stage = attack.at("stage of a step")
    _lines(folder / "timing.jsonl", [{"step": row["step"], "seconds": {stage: 1.0, "odd": "x"}} for row in rows])
    plans = _rows(folder / "plans.jsonl")
    _lines(folder / "plans.jsonl", [plan | {"kind": attack.at("plan kind"), "digest": attack.at("plan digest")} for plan in plans])
    for step in (1, 5):
        _tokens(folder / "tokens" / f"step-{step:06}.jsonl", attack)
        _json(folder / "findings" / f"step-{step:06}.json", _findings(attack))
    _lines(folder / "events.jsonl", _events(attack))
    changed = {attack.at("changed field"): [attack.at("old value"), attack.at("new value")], "one": attack.at("value alone")}
    _lines(folder / "resumes.jsonl", [{"step": 3, "optimizer_step": 12, "changed": changed}])
    return folder


def hostile_config(parent: Path, attack: Attack) -> Path:
    """A folder whose configuration no version can read."""
    folder = parent / "odd"
    folder.mkdir()
    recipe, task, key, value = (attack.at(place, lone=False) for place in ("recipe", "task", "setting", "setting's value"))
    lines = [
        f"recipe = {_toml(recipe)}",
        f"seed = {_toml(value)}",
        f"steps = {_toml(value)}",
        f"{_toml(key)} = {_toml(value)}",
        f"[task]\ntype = {_toml(task)}",
    ]
    (folder / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _lines(folder / "metrics.jsonl", [{"step": 1, "reward": "x", "rollouts_used": "many"}])
    return folder


def hostile_diagnosis(parent: Path, attack: Attack) -> Path:
    folder = parent / "diagnosis"
    folder.mkdir()
    (folder / "config.toml").write_text('recipe = "grpo"\n')
    _json(folder / "diagnosis.json", {"subject": attack.at("subject"), "command": attack.at("command")})
    return folder


def _tokens(path: Path, attack: Attack) -> None:
    rows = _rows(path)
    for row in rows:
        if row["group"] == 0:
            row["prompt"] = attack.at("prompt", lone=False)
            row["token_class"] = attack.at("token class", lone=False)
    # Separators may stand in JSON as they are; a reader that cuts lines there loses the file.
    path.write_text("".join(json.dumps(row, ensure_ascii=LONE in row["text"]) + "\n" for row in rows), encoding="utf-8")


def _findings(attack: Attack) -> dict[str, Any]:
    unknown = {
        "name": attack.at("finding"),
        "note": attack.at("note"),
        "numbers": {
            attack.at("number"): 1.5,
            "text": attack.at("number's value"),
            "__proto__": 2.0,
            "constructor": None,
            "more": 1,
            "most": 2,
        },
        "tables": {attack.at("table"): [{attack.at("column"): attack.at("cell"), "text": attack.at("token in a table")}]},
    }
    inherited = {"name": "constructor", "note": "n", "numbers": {"name": 2.0}, "tables": {"toString": [{"valueOf": 1}]}}
    matrix = {"band": 1e-4, "boosted": 0.1, "suppressed": 0.2, "unchanged": 0.7, "side": attack.at("side"), "tokens": attack.at("tokens")}
    flips = {
        "name": "flips",
        "note": "",
        "numbers": {"dead_band": "x", "step/band/positive/flip": "x"},
        "tables": {"matrix": [matrix | {"horizon": attack.at("horizon")}, matrix | {"horizon": "constructor", "boosted": "x"}]},
    }
    pushed = {"direction": "amplified", "text": attack.at("pushed token"), "mean_effect": 0.1, "tokens": 3}
    cancellation = {
        "name": "cancellation",
        "note": "",
        "numbers": {},
        "tables": {
            "by_class": [{"token_class": attack.at("class in a panel"), "mass": 0.5, "mini_mass": "x"}],
            "amplified_and_damped": [pushed, pushed | {"mean_effect": "x"}],
        },
    }
    pair = {"identity": attack.at("identity"), "confidence": attack.at("confidence"), "other_confidence": "p", "pairs": 3, "share": 0.5}
    coupling = {"name": "coupling", "note": "", "numbers": {}, "tables": {"pairs": [pair]}}
    return {
        "method": attack.at("method"),
        "looked_at": {"groups": LONE, "of": 8},
        "rollouts_used": "x",
        "findings": [unknown, inherited, flips, cancellation, coupling],
    }


def _events(attack: Attack) -> list[dict[str, Any]]:
    single = {"step": 2, "kind": attack.at("event kind"), "message": attack.at("event message"), "stage": attack.at("event stage")}
    single |= {"dump": attack.at("event dump"), attack.at("extra key"): attack.at("extra value"), "rows": [1, "[x]"], "share": "x"}
    many = [
        {"step": step, "kind": "ungraded", "message": attack.at(f"message {step}"), "reasons": {attack.at("reason"): 2, "odd": "x"}}
        for step in range(1, 6)
    ]
    return [single, *many]


def _toml(text: str) -> str:
    """A TOML string; its escapes are JSON's, but for the one of DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
