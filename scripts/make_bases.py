"""Make the base policies that ship with the package, from their seeds.

    python scripts/make_bases.py                 all of them, into src/tokencredit/bases
    python scripts/make_bases.py steps-shift     one of them
    python scripts/make_bases.py --check         make them again elsewhere and compare with what is shipped
    python scripts/make_bases.py steps-shift --seed 8 --out runs/bases-8     another of its kind, from other weights and demonstrations

Same torch, same kind of CPU, one thread: the same bytes. Elsewhere rounding differs and so do the last bits.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple, cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tokencredit.lab.warm_start import Examples, warm_start
from tokencredit.tasks import cotadd, guess, steps
from tokencredit.tasks import cotadd as cotadd_demos
from tokencredit.tasks import guess as guess_demos
from tokencredit.tasks import steps as steps_demos
from tokencredit.tasks.tokenizer import character_tokenizer

SHIPPED = Path(__file__).resolve().parent.parent / "src" / "tokencredit" / "bases"


def steps_examples(rates: steps_demos.ErrorRates, revision_share: float) -> Callable[[int, int], Examples]:
    task = steps.Steps()

    def with_seed(seed: int, batch: int) -> Examples:
        def examples(iteration: int) -> list[tuple[str, str]]:
            rng = Random(f"warm-start/{seed}/{iteration}")
            pairs: list[tuple[str, str]] = []
            for problem in task.problems(batch, split="train", seed=seed * 1_000_003 + iteration):
                if rng.random() < revision_share:
                    pairs.append(steps_demos.demonstrate_revision(task, problem, rates, rng))
                else:
                    pairs.append((problem.prompt, steps_demos.demonstrate(problem, rates, rng)))
            return pairs

        return examples

    return with_seed


def cotadd_examples(seed: int, batch: int) -> Examples:
    """Scratchpads first, so that carrying is learned; then mostly hasty answers that forget every carry."""
    task = cotadd.CotAdd()

    def examples(iteration: int) -> list[tuple[str, str]]:
        rng = Random(f"warm-start/{seed}/{iteration}")
        problems = task.problems(batch, split="train", seed=seed * 1_000_003 + iteration)
        style = cotadd_demos.CAREFUL if iteration < 500 else cotadd_demos.HASTY
        return [(problem.prompt, cotadd_demos.demonstrate(problem, style, rng)) for problem in problems]

    return examples


def guess_examples(seed: int, batch: int) -> Examples:
    """Players who heed first, so that it is learned what the replies mean; then mostly such as do not."""
    task = guess.Guess()

    def examples(iteration: int) -> list[tuple[str, ...]]:
        rng = Random(f"warm-start/{seed}/{iteration}")
        problems = task.problems(batch, split="train", seed=seed * 1_000_003 + iteration)
        style = guess_demos.CAREFUL if iteration < 700 else guess_demos.HASTY
        return [guess_demos.demonstrate(task, problem, style, rng) for problem in problems]

    return examples


class Base(NamedTuple):
    alphabet: str
    examples: Callable[[int, int], Examples]
    hidden: int
    layers: int
    iterations: int
    learning_rate: float
    seed: int = 7
    batch: int = 128


BASES = {
    "steps-shift": Base(steps.ALPHABET, steps_examples(steps_demos.SHIFT, 0.0), 64, 2, 900, 4e-3),
    "steps-sharpen": Base(steps.ALPHABET, steps_examples(steps_demos.SHARPEN, 0.0), 64, 2, 1500, 4e-3),
    "steps-revise": Base(steps.ALPHABET, steps_examples(steps_demos.SHIFT, 0.3), 64, 2, 1500, 4e-3),
    "cotadd": Base(cotadd.ALPHABET, cotadd_examples, 64, 2, 900, 3e-3),
    "guess": Base(guess.ALPHABET, guess_examples, 64, 2, 1200, 4e-3),
}


def make(base: Base, name: str, folder: Path) -> None:
    tokenizer = character_tokenizer(base.alphabet)
    torch.manual_seed(base.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=base.hidden,
            intermediate_size=4 * base.hidden,
            num_hidden_layers=base.layers,
            num_attention_heads=base.hidden // 32,
            num_key_value_heads=base.hidden // 32,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            # At the usual 0.02 so small a model stays on the plateau where it has learned the format but no arithmetic.
            initializer_range=0.05,
            bos_token_id=None,
            eos_token_id=cast(int, tokenizer.eos_token_id),
            pad_token_id=cast(int, tokenizer.pad_token_id),
        )
    )
    began = time.monotonic()

    def report(iteration: int, loss: float) -> None:
        if (iteration + 1) % 50 == 0:
            print(f"{name}: iteration {iteration + 1}/{base.iterations}, loss {loss:.4f}, {time.monotonic() - began:.0f} s", flush=True)

    warm_start(
        model,
        tokenizer,
        base.examples(base.seed, base.batch),
        iterations=base.iterations,
        batch=base.batch,
        learning_rate=base.learning_rate,
        report=report,
    )
    model.save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / name)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which bases (default all): {', '.join(BASES)}")
    parser.add_argument("--check", action="store_true", help="compare with the shipped weights, write nothing there")
    parser.add_argument("--seed", type=int, help="of first weights and demonstrations, instead of the shipped one; needs --out")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder that a base's folder is made in (default: the shipped ones)")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(BASES))
    if unknown:
        parser.error(f"no base called {', '.join(unknown)}; choose from {', '.join(BASES)}")
    if options.seed is not None and (options.check or options.out == SHIPPED):
        parser.error("--seed makes another base than the shipped one; give it a folder with --out, without --check")
    torch.set_num_threads(1)
    names = options.names or list(BASES)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.check else options.out
        for name in names:
            base = BASES[name]
            make(base if options.seed is None else base._replace(seed=options.seed), name, folder)
        digests = {name: digest(folder / name) for name in names}
    if not options.check:
        print(json.dumps(digests, indent=2))
        return 0
    differing = [name for name in names if digests[name] != digest(SHIPPED / name)]
    for name in names:
        print(f"{name}: {'DIFFERS' if name in differing else 'same bytes'}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
