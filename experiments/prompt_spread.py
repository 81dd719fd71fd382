"""How good the gradient of 256 rollouts is when they answer few prompts often or many prompts once, at a fixed policy.

python experiments/prompt_spread.py --models steps-shift,steps-sharpen --out experiments/2026-11-16-prompt-spread/results.json
python experiments/prompt_spread.py --tell experiments/2026-11-16-prompt-spread/results.json

Every layout is drawn `--batches` times; its gradients, one for each advantage, are held against g* of `--reference` other rollouts as in
`tokencredit bench credit`, with the entropy direction and without it. Layouts share no rollouts: differences are between independent means.
"""

import argparse
import json
import math
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
from tokencredit.storage.run_dir import describe_environment

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


def told(values: list[float]) -> str:
    return f"{mean(values):.3f} ± {stdev(values) / math.sqrt(len(values)):.3f}"


def table(record: dict[str, Any]) -> str:
    lines = ["| policy | accuracy | layout | advantage | cosine to g* | without entropy's direction |", "|---|---:|---|---|---:|---:|"]
    for checkpoint in record["checkpoints"]:
        for row in checkpoint["rows"]:
            accuracy = f"{100 * checkpoint['policy']['accuracy']:.1f}"
            layout = f"{row['prompts']} x {row['group_size']}"
            measured = " | ".join(told(row[name]) for name in ("cosine", "without_entropy"))
            lines.append(f"| {checkpoint['model']} | {accuracy} | {layout} | {row['advantage']} | {measured} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="steps-shift,steps-sharpen")
    parser.add_argument("--batches", type=int, default=32)
    parser.add_argument("--reference", type=int, default=32768)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tell", type=Path, help="print the table of results that are there")
    options = parser.parse_args()
    if options.tell:
        print(table(json.loads(options.tell.read_text())))
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
    print(table(record))


if __name__ == "__main__":
    main()
