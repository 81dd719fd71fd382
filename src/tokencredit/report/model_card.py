"""The model card (README.md) of an exported model: training, accuracy with intervals, recipe, data, limitations.

Order of this file: the card and its sections, facts about the base model, Markdown helpers. Values come from files that may be untrusted,
so every value is escaped.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokencredit.bases import base_folder, shipped_bases
from tokencredit.models import is_hub_id
from tokencredit.models.smollm import NAME as SMOLLM
from tokencredit.models.smollm import cache_folder
from tokencredit.report.events import notices
from tokencredit.report.format import duration, grouped, percent
from tokencredit.report.headline import Headline, headline
from tokencredit.report.methods import Methods, flat, methods, shown
from tokencredit.report.run_reader import Run, setting
from tokencredit.report.token_view import number
from tokencredit.stats import EXPLAINED, wilson
from tokencredit.text import brief

CONFIG_FILE = "run-config.toml"

CAUTIONS = ("warning", "guard", "gold", "ungraded", "damaged", "out-of-memory", "stopped")
"""Kinds of events that a user of the model should know."""

EVENTS_NAMED = 12


def card(run: Run, *, step: int) -> str:
    """The text of README.md; `step` is the training step of the exported weights."""
    head, how = headline(run), methods(run)
    chosen = next((row for row in run.metrics if row["step"] == step and _share(row.get("held_out/sampled")) is not None), {})
    parts = [_header(run), f"# {plain(head.name)}\n", _about(run, head, step, best=bool(chosen)), *_numbers(run, head, step, chosen)]
    parts += ["## Use\n", _use(), "## Training\n", _training(run, head), "## Recipe\n", _recipe(how), *_data(run)]
    parts += ["## Reproduce\n", _reproduce(run, how), "## Limitations\n", _cautions(run, how)]
    return "\n".join(parts)


def _header(run: Run) -> str:
    """The YAML header. JSON strings are valid YAML, so they can hold any text."""
    model = str(run.config.get("model", "unknown"))
    lines = [f"base_model: {json.dumps(base_name(model))}", "library_name: transformers", "pipeline_tag: text-generation"]
    if (license := base_license(model)) is not None:
        lines.insert(0, f"license: {json.dumps(license)}")
    return "\n".join(["---", *lines, "tags:", "- tokencredit", "- reinforcement-learning", "---\n"])


def _about(run: Run, head: Headline, step: int, *, best: bool) -> str:
    base = plain(base_name(str(run.config.get("model", "unknown"))))
    supervised = setting(run.config, "source") == "demonstrations"
    what = f"demonstrations of task {code(head.task)}" if supervised else f"task {code(head.task)} with recipe {code(head.recipe)}"
    ending = ", which had the best evaluation." if best and str(step) == head.best_step else "."
    return f"{base}, trained on {what} by tokencredit for {head.steps} steps. The weights are those after training step {step}{ending}\n"


def _numbers(run: Run, head: Headline, step: int, chosen: Mapping[str, Any]) -> Iterable[str]:
    """Accuracy before and after the run; `chosen` is the evaluation by which these weights were selected."""
    rows = []
    for kind, name in (("greedy", "greedy"), ("sampled", "one sample (pass@1)"), ("pass_at_k", "best of k (pass@k)")):
        for when, at in (("before", 0), ("after", head.steps)):
            found = run.evaluated(when)
            share, problems = _share(found.get(kind)), number(found.get("problems"))
            if share is not None and problems is not None and problems >= 1:
                low, high = wilson(share, int(problems))
                label = name.replace("k", str(found.get("k"))) if kind == "pass_at_k" else name
                rows.append([f"{when} (step {at})", plain(label), percent(share), f"{percent(low)} to {percent(high)}", grouped(problems)])
    if not rows and not chosen:
        return
    yield "## Accuracy on held-out problems\n"
    if rows:
        yield table(["when", "decoding", "accuracy", "95 % interval", "problems"], rows)
    if chosen:
        share, problems = percent(float(chosen["held_out/sampled"])), plain(chosen.get("held_out/problems", "unknown"))
        yield (
            f"These weights, of step {step}, were right in {share} of samples for {problems} held-out problems during training. "
            "This number is biased upwards, because the weights were selected by it.\n"
        )
    yield f"Intervals: {EXPLAINED}\n"


def _share(value: Any) -> float | None:
    found = number(value)
    return found if found is not None and 0 <= found <= 1 else None


def _use() -> str:
    return block(
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'folder = "."  # this folder\n'
        "model = AutoModelForCausalLM.from_pretrained(folder)\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        "python",
    )


def _training(run: Run, head: Headline) -> str:
    rows = [["seed", head.seed], ["training steps", head.steps]]
    if head.rollouts is not None:
        rows.append(["rollouts", grouped(head.rollouts)])
    if head.seconds:
        rows.append(["time", duration(head.total_seconds)])
    rows.append(["engine", code(setting(run.config, "engine", "unknown"))])
    return table(["setting", "value"], [*rows, *_listed({"task": run.config.get("task", {})})])


def _recipe(how: Methods) -> str:
    if how.unknown:
        return f"The configuration cannot be read by this version: {plain(how.unknown)}\n"
    lines = [f"{plain(how.summary)} ({plain(how.paper)})\n"]
    for stage in how.stages:
        numbers = ", ".join(f"{one.path} {one.value}" for one in stage.settings)
        chosen = f" {code(stage.choice)}" if stage.choice else ""
        lines.append(f"- **{stage.stage}**{chosen}: {plain(stage.what)}" + (f" ({plain(numbers)})" if numbers else ""))
    return "\n".join(lines) + "\n"


def _data(run: Run) -> Iterable[str]:
    """Counts and fingerprints of the data, so that others can check whether they have the same data."""
    if rows := _listed({name: value for name, value in run.data.items() if name != "task"}):
        yield "## Data\n"
        yield table(["what", "value"], rows)


def _listed(values: Mapping[str, Any]) -> list[list[str]]:
    """Table rows of settings. A path is reduced to its last part, because the rest is private."""
    found = flat(dict(values)).items()
    return [
        [code(path), code(Path(value).name if isinstance(value, str) and value.startswith("/") else shown(value))] for path, value in found
    ]


def _reproduce(run: Run, how: Methods) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in how.versions)
    commit, changed = run.environment.get("commit"), " with uncommitted changes" if run.environment.get("diff") else ""
    ending = f" Commit {code(commit)}{changed}." if commit else ""
    command = block(f"tokencredit train {CONFIG_FILE}", "bash")
    return f"{code(CONFIG_FILE)} holds the complete configuration:\n\n{command}\n{plain(versions, 2000)}.{ending}\n"


def _cautions(run: Run, how: Methods) -> str:
    cautions = [notice.text for notice in notices(run) if notice.severe]
    cautions += [QUANTIZED] if is_quantized(str(run.config.get("model", ""))) else []
    cautions += how.caveats
    messages = list(dict.fromkeys(str(event["message"]) for event in run.events if event["kind"] in CAUTIONS))
    cautions += messages[:EVENTS_NAMED]
    if len(messages) > EVENTS_NAMED:
        cautions.append(f"{len(messages) - EVENTS_NAMED} more events were recorded during training")
    cautions.append("The model was trained for one task and evaluated on that task only. Effects on other abilities are unknown.")
    return "".join(f"- {plain(line)}\n" for line in cautions)


ORIGINALS = {SMOLLM: "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Our model names -> hub ids."""

QUANTIZED = "The base was converted from a quantized file: its weights had been rounded before training began."

LICENSE = re.compile(r"license:[ \t]*[\"']?([A-Za-z0-9][\w.+-]{0,60})[\"']?[ \t]*")


def base_name(model: str) -> str:
    """The hub id or shipped name; for a folder only its last part, because the path is private."""
    if model in ORIGINALS:
        return ORIGINALS[model]
    if model not in shipped_bases() and is_hub_id(model) and not Path(model).is_dir():
        return model.partition("@")[0]
    return Path(model).name


def base_license(model: str) -> str | None:
    """The license in the header of the base model's README.md, or None."""
    with suppress(OSError, ValueError):
        text = (_local(model) / "README.md").read_text(encoding="utf-8")
        header = text.split("---", 2)[1] if text.startswith("---") else ""
        found = [match[1] for line in header.splitlines() if (match := LICENSE.fullmatch(line))]
        return found[0] if found else None
    return None


def is_quantized(model: str) -> bool:
    if model == SMOLLM:
        return True
    with suppress(OSError, ValueError):
        return "quantization_config" in json.loads((_local(model) / "config.json").read_text(encoding="utf-8"))
    return False


def _local(model: str) -> Path:
    """The local folder of the base model, which may not exist. A card never downloads anything."""
    if model in shipped_bases():
        return base_folder(model)
    if model == SMOLLM:
        return next(iter(sorted(cache_folder().glob("smollm2-*"))), Path("nowhere"))
    if is_hub_id(model) and not Path(model).is_dir():
        return _in_hub_cache(model)
    return Path(model)


def _in_hub_cache(model: str) -> Path:
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = model.partition("@")
    found = try_to_load_from_cache(repository, "config.json", revision=revision or None)
    return Path(found).parent if isinstance(found, str) else Path("nowhere")


SPECIAL = re.compile(r"[\\`*_\[\]<>|~&$]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""Characters that act as markup in Markdown or HTML, or that start an automatic link."""

AT_THE_START = re.compile(r"^(\s*\d*)(?=[#+=.)-])")
"""The position before characters that would start a heading or a list."""


def plain(text: object, longest: int = 400) -> str:
    """Escaped text on one line, without invisible characters and without markup."""
    return AT_THE_START.sub(r"\1\\", SPECIAL.sub(r"\\\g<0>", brief(str(text), longest)))


def code(text: object, longest: int = 400) -> str:
    """A code span; its fence is longer than any sequence of backticks inside."""
    content = brief(str(text), longest)
    fence = "`" * (_most_backticks(content) + 1)
    padded = f" {content} " if content.startswith("`") or content.endswith("`") else content
    # A table is split at every pipe, also inside code.
    return f"{fence}{padded}{fence}".replace("|", "\\|")


def block(text: str, language: str = "") -> str:
    fence = "`" * max(3, _most_backticks(text) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _most_backticks(text: str) -> int:
    return max((len(ticks) for ticks in re.findall("`+", text)), default=0)
