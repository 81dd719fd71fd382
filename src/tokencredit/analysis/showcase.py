"""Sample a few held-out responses and the credit that the recipe assigns to their tokens, for display."""

from typing import NamedTuple

from tokencredit.config.train import TrainConfig
from tokencredit.forward.padded import response_extent
from tokencredit.pipeline.credit import BatchEvidence, MethodState
from tokencredit.policy.policy import Policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.collect import CollectedBatch
from tokencredit.rollout.extra import sample_extra
from tokencredit.rollout.generate import generate
from tokencredit.rollout.grading import grade_rollouts
from tokencredit.rollout.scoring import credit_pipeline, model_facts, score_tokens
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Task


class ShownResponse(NamedTuple):
    prompt: str
    pieces: list[str]
    credit: list[float]
    score: float


def showcase(
    config: TrainConfig, policy: Policy, task: Task, state: MethodState, *, pairs: int = 3, problems: int = 64
) -> list[ShownResponse]:
    """A right and a wrong response to one problem, for at most `pairs` problems; empty where no problem has both.

    Rewards are shaped without a KL penalty, because the reference model is no longer loaded.
    """
    chosen = task.problems(min(problems, config.evaluation.final_problems), split="held-out", seed=derive_seed(config.seed, "showcase"))
    rollouts = generate(
        policy,
        task,
        chosen,
        SamplingParams.from_config(config, seed=derive_seed(config.seed, "showcase-sample"), group_size=config.sampling.siblings),
    ).rollouts
    score = grade_rollouts(policy, task, chosen, rollouts)
    pipeline = credit_pipeline(config)
    evidence = score_tokens(config, policy.model, rollouts, keep_hidden=pipeline.keeps_hidden, free_memory=policy.release)
    batch = CollectedBatch(chosen, rollouts, score, evidence, len(score), len(score))
    sampled = sample_extra(policy, task, config, batch, seed=derive_seed(config.seed, "showcase-extra")).sampled
    known = BatchEvidence(evidence, extra=sampled, model=model_facts(policy))
    credited, _ = pipeline.credit(rollouts, score, known, state, seed=derive_seed(config.seed, "showcase-credit"))
    shown: list[ShownResponse] = []
    extent = response_extent(rollouts.mask).tolist()
    for rows in _contrasts(score.tolist(), rollouts.group.tolist())[:pairs]:
        for row in rows:
            # The environment's replies are shown too; they have no credit.
            ids = rollouts.tokens[row, : extent[row]].tolist()
            pieces = ["⏎" if token in policy.end_tokens else text for token, text in zip(ids, policy.token_texts(ids), strict=True)]
            problem = chosen[int(rollouts.group[row])]
            shown.append(ShownResponse(problem.prompt, pieces, credited.credit[row, : extent[row]].tolist(), float(score[row])))
    return shown


def _contrasts(scores: list[float], groups: list[int]) -> list[tuple[int, int]]:
    """The first right and the first wrong row of every problem that has both."""
    pairs: list[tuple[int, int]] = []
    for group in dict.fromkeys(groups):
        right = [row for row, name in enumerate(groups) if name == group and scores[row] >= 1]
        wrong = [row for row, name in enumerate(groups) if name == group and scores[row] < 1]
        pairs += list(zip(right, wrong, strict=False))[:1]
    return pairs
