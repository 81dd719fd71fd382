"""TRL's GRPOTrainer on the embedded default, timed. Run as a script by a python that has trl; prints one JSON line.

Same model, problems, batch, optimizer steps, length limit and clip as ours; fp32, one thread, no logging and no saving.
"""

import json
import os
import sys
import tempfile
import time
from itertools import pairwise


def main() -> None:
    order = json.loads(sys.argv[1])
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from tokencredit.tasks.protocol import Problem
    from tokencredit.tasks.steps import Steps

    torch.set_num_threads(1)
    task = Steps()
    cycles = order["steps"] + order["warm_up"]
    problems = task.problems(order["prompts"] * cycles, split="train", seed=order["seed"])
    rows = [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]

    def reward(prompts: list[str], completions: list[str], answer: list[str], **_: object) -> list[float]:
        return [task.grade(Problem(prompt="", answer=right), text) for right, text in zip(answer, completions, strict=True)]

    class Clock(TrainerCallback):
        """Stamps the end of every optimizer step."""

        def __init__(self) -> None:
            self.stamps: list[float] = []

        def on_train_begin(self, *_: object, **__: object) -> None:
            self.stamps.append(time.perf_counter())

        def on_step_end(self, *_: object, **__: object) -> None:
            self.stamps.append(time.perf_counter())

    clock = Clock()
    per_cycle = order["optimizer_steps"]
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(order["model"]),
            reward_funcs=reward,
            train_dataset=Dataset.from_list(rows),
            callbacks=[clock],
            args=GRPOConfig(
                output_dir=scratch,
                per_device_train_batch_size=order["prompts"] * order["group_size"] // per_cycle,
                gradient_accumulation_steps=1,
                steps_per_generation=per_cycle,
                num_generations=order["group_size"],
                max_completion_length=order["max_new_tokens"],
                max_steps=cycles * per_cycle,
                learning_rate=order["learning_rate"],
                loss_type="dapo",
                epsilon=0.2,
                epsilon_high=0.28,
                beta=0.0,
                temperature=1.0,
                seed=order["seed"],
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to="none",
                save_strategy="no",
                logging_steps=10_000,
                disable_tqdm=True,
            ),
        )
        trainer.train()
    ends = clock.stamps[::per_cycle]
    seconds = [end - start for start, end in pairwise(ends)][order["warm_up"] :]
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
