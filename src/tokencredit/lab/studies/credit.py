"""The credit benchmark over several checkpoints as Markdown, and how the layout of a batch changes its gradient.

Commands: `tables`, `prompt-spread`.
"""

import argparse
import copy
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from tokencredit.advantage.group import c_rf_advantage, grpo_advantage
from tokencredit.config.resolve import resolve
from tokencredit.lab.compare.design import with_settings
from tokencredit.lab.credit.batch import draw_batch, gradients_of
from tokencredit.lab.credit.compare_gradients import draw_reference, halves_of, products_of
from tokencredit.lab.credit.measure import Subject
from tokencredit.lab.credit.quality import Axes, axes_of, ratio, without_entropy
from tokencredit.lab.credit.recipes import CreditOrder
from tokencredit.lab.credit.run import load_subject
from tokencredit.lab.studies import parser_of, run_command
from tokencredit.storage.run_dir import describe_environment

Checkpoints = Mapping[str, dict[str, Any]]
"""What was measured, by the name of its column."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def effect(found: Mapping[str, Any] | None, limit: float) -> str:
    """A paired difference with its t; bold where the t survives all comparisons of its column."""
    if found is None:
        return "–"
    t = found["t"]
    cell_text = f"{found['mean']:+.3f} ({'–' if t is None else f'{t:+.1f}'})"
    return f"**{cell_text}**" if t is not None and abs(t) > limit else cell_text


def of_method(rows: Sequence[dict[str, Any]], method: str) -> dict[str, Any] | None:
    return next((row for row in rows if row["method"] == method), None)


def alike(checkpoints: Checkpoints) -> list[list[str]]:
    """Methods that gave the very same gradients everywhere, together."""
    found: dict[tuple[Any, ...], list[str]] = {}
    methods = {row["method"]: None for one in checkpoints.values() for row in one["gradient"]["batches"]["rows"]}
    for method in methods:
        rows = [of_method(one["gradient"]["batches"]["rows"], method) for one in checkpoints.values()]
        key = tuple(None if row is None else tuple(round(cosine, 6) for cosine in row["cosines"]) for row in rows)
        found.setdefault(key, []).append(method)
    return list(found.values())


def truth(checkpoints: Checkpoints) -> str:
    head = [
        "checkpoint",
        "accuracy",
        "mixed groups",
        "entropy",
        "80 % of sum A*² on",
        "A* above 0.1",
        "real share of A*",
        "cos(g*, less entropy)",
    ]
    rows = []
    for name, one in checkpoints.items():
        policy, true = one["policy"], one["truth"]
        shares = [
            policy["accuracy"],
            policy["mixed_groups"],
            true["tokens_holding_80_percent"],
            true["share_above"]["0.1"],
            true["reliability"],
        ]
        accuracy, mixed, holding, above, real = (f"{100 * share:.1f} %" for share in shares)
        toward = f"{one['gradient']['batches']['reference_toward_sharpness']:.2f}" if one["gradient"] else "–"
        rows.append([name, accuracy, mixed, f"{policy['entropy']:.3f}", holding, above, real, toward])
    return table(head, rows)


def gradients(checkpoints: Checkpoints, *, without_entropy: bool = False) -> str:
    def part(row: dict[str, Any] | None) -> dict[str, Any] | None:
        return row["without_entropy"] if row is not None and without_entropy else row

    found = []
    for methods in alike(checkpoints):
        cells = []
        for one in checkpoints.values():
            batches = one["gradient"]["batches"]
            row = part(of_method(batches["rows"], methods[0]))
            baseline = methods[0] == batches["rows"][0]["method"]
            cells.append("–" if row is None else f"{row['cosine']:.3f}" if baseline else effect(row["versus_grpo"], batches["surviving_t"]))
        found.append([", ".join(methods), *cells])
    return table(["recipe", *checkpoints], found)


def beside_uniform(checkpoints: Checkpoints) -> str:
    """What credit does to the recipe it is part of: the same recipe with every token of a response alike is its twin."""
    rows = {name: one["gradient"]["batches"] for name, one in checkpoints.items()}
    methods = {row["method"]: None for batches in rows.values() for row in batches["rows"] if row["versus_uniform_credit"] is not None}
    found = []
    for method in methods:
        own = [(of_method(batches["rows"], method), batches["surviving_t"]) for batches in rows.values()]
        found.append([method, *("–" if row is None else effect(row["versus_uniform_credit"], limit) for row, limit in own)])
    return table(["recipe", *checkpoints], found)


def _number(row: dict[str, Any] | None, measure: str) -> str:
    value = None if row is None else row[measure]["value"]
    return "–" if value is None else f"{value:.2f}"


def agreement(checkpoints: Checkpoints) -> str:
    methods = {row["method"]: None for one in checkpoints.values() for row in one["agreement"]["rows"] if row["same_credit_as"] is None}
    found = []
    for method in methods:
        rows = [of_method(one["agreement"]["rows"], method) for one in checkpoints.values()]
        cells = ["; ".join(_number(row, measure) for measure in ("pearson", "auroc")) for row in rows]
        found.append([method, *cells])
    return table(["credit", *checkpoints], found)


def classes(checkpoints: Checkpoints) -> Iterator[str]:
    """Mean coefficient in better / worse responses, of credits that are not alike for all tokens."""
    for name, one in checkpoints.items():
        named = list(one["truth"]["classes"])
        rows = []
        for row in one["agreement"]["rows"]:
            sides = [(row["by_class"].get(of) or {}).get(side) for of in named for side in ("positive", "negative")]
            if row["same_credit_as"] is None and len({round(side, 3) for side in sides if side is not None}) > 1:
                cell_text = ["–" if side is None else f"{side:.2f}" for side in sides]
                rows.append([row["method"], *(f"{cell_text[i]} / {cell_text[i + 1]}" for i in range(0, len(cell_text), 2))])
        share = ["*of sum A\\*²*", *(f"*{100 * one['truth']['classes'][of]['share_of_square']:.0f} %*" for of in named)]
        yield f"{name}:\n\n" + table(["credit", *named], [share, *rows])


def oracle(checkpoints: Checkpoints) -> str:
    names = ("oracle A*", "dapo", "delta", "delta-symmetric", "sibling-context", "ntf-anneal", "vineppo")
    found = []
    for method in names:
        cells = []
        for one in checkpoints.values():
            groups = one["gradient"]["groups"]
            row = of_method(groups["rows"], method)
            cells.append("–" if row is None else effect(row["versus_grpo"], groups["surviving_t"]))
        found.append([method, *cells])
    return table(["credit", *checkpoints], found)


def taken_apart(checkpoints: Checkpoints) -> Checkpoints:
    """Checkpoints whose file has failure kinds; older files have none."""
    return {name: one for name, one in checkpoints.items() if "anatomy" in one}


def anatomy(checkpoints: Checkpoints) -> Iterator[str]:
    """Percent by kind of token, in right / wrong responses."""
    head = ["credit", "of credit on A* near 0", "against A*", "with A*", "of A* without credit"]
    for name, one in taken_apart(checkpoints).items():
        rows = []
        for row in one["anatomy"]["rows"]:
            values = [[row[side][kind]["value"] for side in ("right", "wrong")] for kind in ("undecided", "against", "agreeing", "missed")]
            cells = [" / ".join("–" if value is None else f"{100 * value:.0f}" for value in both) for both in values]
            if row["same_credit_as"] is None:
                rows.append([row["method"], *cells])
        yield f"{name}:\n\n" + table(head, rows)


def examples(checkpoints: Checkpoints) -> Iterator[str]:
    """The worst example of every credit: below each token a mark from 1 to 9, the response's largest; negative ones in their own line."""
    for name, one in taken_apart(checkpoints).items():
        for row in one["anatomy"]["rows"]:
            for example in row["examples"][:1]:
                response = one["anatomy"]["responses"][example["response"]]
                verdict = "right" if response["right"] else "wrong"
                cell_text = f"a {verdict} response, 1 - cos = {example['disagreement']:.2f}, number {example['rank']} of {example['of']}"
                yield f"{name}, {row['method']}: {cell_text}\n\n{picture(response, example)}\n{decided(row['method'], response, example)}"


def picture(response: Mapping[str, Any], example: Mapping[str, Any]) -> str:
    """Mark A* only where it differs significantly from 0; noise would fill the line."""
    texts = [repr(text)[1:-1] for text in response["text"]]
    truth = [value if kind not in ("undecided", None) else 0 for value, kind in zip(response["truth"], example["kind"], strict=True)]
    lines = [("", f"{response['prompt']} ", texts)]
    for what, values in (("A*", truth), ("credit", example["credit"])):
        largest = max(abs(value) for value in values)
        for sign in (1, -1):
            marks = [str(max(1, round(9 * abs(value) / largest))) if value * sign > 0 else "" for value in values]
            if any(marks):
                marked = [mark.ljust(len(text)) for mark, text in zip(marks, texts, strict=True)]
                lines.append((f"{what} {'+' if sign > 0 else '-'}", " " * (len(response["prompt"]) + 1), marked))
    return "".join(f"    {what:<9}{before}{''.join(cells)}".rstrip() + "\n" for what, before, cells in lines)


def decided(method: str, response: Mapping[str, Any], example: Mapping[str, Any]) -> str:
    """Numbers of the tokens that decided something."""
    credits = {"grpo": response["baseline_credit"], method: example["credit"]}
    rows = [
        [
            f"{place + 1}: `{response['text'][place]}`",
            response["token_class"][place],
            f"{response['probability'][place]:.3f}",
            f"{response['truth'][place]:+.3f} ± {response['standard_error'][place]:.3f}",
            *(f"{credit[place]:+.2f}" for credit in credits.values()),
            kind,
        ]
        for place, kind in enumerate(example["kind"])
        if kind not in ("undecided", None)
    ]
    return table(["token", "class", "p", "A* ± s.e.", *(f"credit of {name}" for name in credits), "kind"], rows)


def with_more(first: dict[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Methods of `later` that `first` does not have. Policy and truth show whether both were measured on the same rollouts."""
    if (first["truth"], first["policy"]) != (later["truth"], later["policy"]):
        sys.exit(
            f"credit_tables: {first['model']} and {later['model']} were not measured on the same rollouts; give them columns of their own"
        )
    cell_text = copy.deepcopy(first)
    pairs = [(cell_text[part], later[part]) for part in ("agreement", "anatomy") if part in cell_text and part in later]
    if cell_text["gradient"] and later["gradient"]:
        pairs += [(cell_text["gradient"][part], later["gradient"][part]) for part in ("batches", "groups")]
    for mine, other in pairs:
        known = {row["method"] for row in mine["rows"]}
        mine["rows"] += [row for row in other["rows"] if row["method"] not in known]
    return cell_text


PARTS: Mapping[str, Callable[[Checkpoints], str]] = {
    "truth": truth,
    "gradients": gradients,
    "entropy": lambda checkpoints: gradients(checkpoints, without_entropy=True),
    "uniform": beside_uniform,
    "agreement": agreement,
    "classes": lambda checkpoints: "\n".join(classes(checkpoints)),
    "oracle": oracle,
    "anatomy": lambda checkpoints: "\n".join(anatomy(checkpoints)),
    "examples": lambda checkpoints: "\n".join(examples(checkpoints)),
}

OF_GRADIENTS = frozenset({"gradients", "entropy", "uniform", "oracle"})
"""Left empty for files that were made with --reference 0."""


def credit_tables() -> None:
    """Tables over several checkpoints of `tokencredit bench credit --json FILE.json` as Markdown.

    python -m tokencredit.lab.studies.credit tables name=FILE.json name=FILE.json ...
    python -m tokencredit.lab.studies.credit tables --part truth --part gradients name=FILE.json ...

    A second file under the same name adds recipes that were measured later on the same rollouts to that column.
    """
    parser = parser_of(credit_tables)
    parser.add_argument("files", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--part", choices=PARTS, action="append")
    asked = parser.parse_args()
    checkpoints: dict[str, dict[str, Any]] = {}
    for name, _, file in (entry.partition("=") for entry in asked.files):
        one = json.loads(Path(file).read_text(encoding="utf-8"))["checkpoints"][0]
        checkpoints[name] = with_more(checkpoints[name], one) if name in checkpoints else one
    for part in asked.part or PARTS:
        measured = {name: one for name, one in checkpoints.items() if one["gradient"] or part not in OF_GRADIENTS}
        print(f"### {part}\n\n{PARTS[part](measured)}")


ROLLOUTS = 256
GROUP_SIZES = (1, 2, 4, 8)


def right_alone(score: Tensor, group: Tensor) -> Tensor:
    """Its mean over rollouts is the true gradient but for a factor: responses that earn nothing teach nothing."""
    return c_rf_advantage(score, group).clamp(min=0)


ADVANTAGES = {"grpo": grpo_advantage, "c-rf": c_rf_advantage, "c-rf, right responses alone": right_alone}


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    subject = load_subject(resolve([{"recipe": "c-rf", "model": model, "seed": options.seed, "threads": 1}]))
    order = CreditOrder(reference=options.reference)
    reference, facts = draw_reference(
        subject, order, lambda what, done, total: print(f"\r{model}: {what} {done}/{total}", end="", flush=True)
    )
    axes = axes_of(halves_of(reference))
    rows = []
    for size in GROUP_SIZES:
        print(f"\r{model}: {ROLLOUTS // size} x {size}          ", flush=True)
        found = cosines(subject, size, options.batches, reference.gradient, reference.entropy, axes)
        rows += [{"prompts": ROLLOUTS // size, "group_size": size, "advantage": name, **own} for name, own in found.items()]
    return {
        "model": model,
        "policy": facts.to_json(),
        "halves_cosine": axes.agreement,
        "toward_sharpness": axes.toward_sharpness,
        "rows": rows,
    }


def cosines(subject: Subject, size: int, batches: int, reference: Tensor, entropy: Tensor, axes: Axes) -> dict[str, dict[str, list[float]]]:
    """Of every batch's gradient to g*, as it is and without the entropy direction. grpo needs siblings."""
    policy, task, config = subject
    layout = with_settings(config, {"sampling.group_size": size})
    found: dict[str, dict[str, list[float]]] = {
        name: {"cosine": [], "without_entropy": []} for name in ADVANTAGES if size > 1 or name != "grpo"
    }
    for number in range(batches):
        batch = draw_batch(policy, task, layout, prompts=ROLLOUTS // size, purpose=f"spread-{size}", number=number)
        mask = batch.rollouts.mask
        ascents = {name: ADVANTAGES[name](batch.score, batch.rollouts.group)[:, None] * mask for name in found}
        for name, gradient in gradients_of(policy, batch.rollouts, ascents, layout).items():
            products = products_of(gradient, reference, entropy)
            rest = without_entropy(products, axes)
            found[name]["cosine"].append(ratio(products.along, products.square, axes.reference))
            found[name]["without_entropy"].append(ratio(rest.along, rest.square, axes.reference - axes.lean**2 / axes.entropy))
    return found


def mean_and_error(values: list[float]) -> str:
    return f"{mean(values):.3f} ± {stdev(values) / math.sqrt(len(values)):.3f}"


def spread_table(record: dict[str, Any]) -> str:
    lines = ["| policy | accuracy | layout | advantage | cosine to g* | without entropy's direction |", "|---|---:|---|---|---:|---:|"]
    for checkpoint in record["checkpoints"]:
        for row in checkpoint["rows"]:
            accuracy = f"{100 * checkpoint['policy']['accuracy']:.1f}"
            layout = f"{row['prompts']} x {row['group_size']}"
            measured = " | ".join(mean_and_error(row[name]) for name in ("cosine", "without_entropy"))
            lines.append(f"| {checkpoint['model']} | {accuracy} | {layout} | {row['advantage']} | {measured} |")
    return "\n".join(lines)


def prompt_spread() -> None:
    """How good the gradient of 256 rollouts is with few prompts and large groups or with many prompts, at a fixed policy.

    python -m tokencredit.lab.studies.credit prompt-spread --models steps-shift,steps-sharpen --out results.json
    python -m tokencredit.lab.studies.credit prompt-spread --tell results.json

    Every layout is drawn `--batches` times. Its gradients, one per advantage, are compared with g* of `--reference` other rollouts as
    in `tokencredit bench credit`, with the entropy direction and without it. Layouts share no rollouts: differences are between
    independent means.
    """
    parser = parser_of(prompt_spread)
    parser.add_argument("--models", default="steps-shift,steps-sharpen")
    parser.add_argument("--batches", type=int, default=32)
    parser.add_argument("--reference", type=int, default=32768)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tell", type=Path, help="print the table of this file and measure nothing")
    options = parser.parse_args()
    if options.tell:
        print(spread_table(json.loads(options.tell.read_text())))
        return
    torch.set_num_threads(1)
    environment = describe_environment()
    asked = {"seed": options.seed, "batches": options.batches, "reference": options.reference}
    record = {"commit": environment["commit"], "torch": environment["packages"]["torch"], **asked, "checkpoints": []}
    for model in options.models.split(","):
        record["checkpoints"].append(measure(model, options))
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(spread_table(record))


if __name__ == "__main__":
    run_command({"tables": credit_tables, "prompt-spread": prompt_spread})
