"""GRPO in stock TRL, turned into token-level credit by three lines.

    -from trl import GRPOConfig, GRPOTrainer
    +from trl import GRPOConfig
    +from tokencredit.integrations.trl import CreditGRPOTrainer
    -trainer = GRPOTrainer(
    +trainer = CreditGRPOTrainer(
    +    recipe={"recipe": "delta", "batching": {"type": "query-preserved"}},

Model, task and verifier come with the package, so nothing is downloaded; put your own in their place. The rest of the
script is plain TRL. Takes about a minute on one CPU core; the reward rises from about 0.3 to above 0.7.
"""

import argparse
import os
from tempfile import mkdtemp

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from tokencredit.integrations.trl import CreditGRPOTrainer  # 1: import
from tokencredit.models import model_folder
from tokencredit.tasks.protocol import Problem
from tokencredit.tasks.steps import Steps

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=240, help="optimizer steps, four to a batch of rollouts")
options.add_argument("--out", default=None, help="folder for TRL's checkpoints; default a temporary one")
asked = options.parse_args()

torch.set_num_threads(1)  # Two threads only get in each other's way with a model this small.
processes = int(os.environ.get("WORLD_SIZE", "1"))
task = Steps()
problems = task.problems(16 * asked.steps // 4 + 16, split="train", seed=0)


def right(prompts: list[str], completions: list[str], answer: list[str], **_) -> list[float]:
    """1 where the verifier finds the answer."""
    triples = zip(prompts, answer, completions, strict=True)
    return [task.grade(Problem(prompt=prompt, answer=known), response) for prompt, known, response in triples]


trainer = CreditGRPOTrainer(  # 2: class
    recipe={"recipe": "delta", "batching": {"type": "query-preserved"}},  # 3: recipe, by name, as a file or with differences
    model=AutoModelForCausalLM.from_pretrained(model_folder("steps-shift"), dtype=torch.float32),
    processing_class=AutoTokenizer.from_pretrained(model_folder("steps-shift")),
    reward_funcs=right,
    train_dataset=Dataset.from_list([{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]),
    args=GRPOConfig(
        output_dir=asked.out or mkdtemp(),
        max_steps=asked.steps,
        num_generations=8,
        per_device_train_batch_size=32 // processes,  # 16 prompts x 8 responses, four optimizer steps on them
        steps_per_generation=4,
        gradient_accumulation_steps=1,
        max_completion_length=48,
        learning_rate=5e-4,
        max_grad_norm=1.0,
        use_cpu=not torch.cuda.is_available(),  # Said outright, or processes without a GPU would each train alone.
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=24,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    ),
)
trainer.train()

if trainer.accelerator.is_main_process:
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    print("mean reward of every six batches:", *(f"{reward:.2f}" for reward in rewards))
