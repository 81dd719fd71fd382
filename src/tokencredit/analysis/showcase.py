"""A few held-out responses with the credit the recipe gives their tokens, for people to look at."""

from typing import NamedTuple

from tokencredit.config.train import TrainConfig
from tokencredit.forward.padded import response_extent
from tokencredit.pipeline.credit import BatchEvidence, MethodState
from tokencredit.policy.policy import Policy
from tokencredit.rollout.extra import gather_extra
from tokencredit.rollout.generate import generate
from tokencredit.rollout.grading import grade_rollouts
from tokencredit.rollout.scoring import Pipeline, model_facts
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
    """A right and a wrong response of one problem, `pairs` times at most; empty when there are none.

    Rewards are shaped without a KL penalty: the reference is not at hand any more.
    """
    asked = task.problems(min(problems, config.evaluation.final_problems), split="held-out", seed=derive_seed(config.seed, "showcase"))
    rollouts = generate(
        policy,
        task,
        asked,
        group_size=config.sampling.siblings,
        max_new_tokens=config.sampling.max_new_tokens,
        seed=derive_seed(config.seed, "showcase-sample"),
        temperature=config.sampling.temperature,
        dtype=config.dtype,
    ).rollouts
    score = grade_rollouts(policy, task, asked, rollouts)
    pipeline = Pipeline(config)
    evidence = pipeline.score_tokens(policy.model, rollouts, keep_hidden=pipeline.keeps_hidden, free_memory=policy.release)
    extra = gather_extra(policy, task, config, asked, rollouts, score, seed=derive_seed(config.seed, "showcase-extra"))
    known = BatchEvidence(evidence, extra=extra.sampled, model=model_facts(policy))
    credited = pipeline.credit(rollouts, score, known, state, seed=derive_seed(config.seed, "showcase-credit")).credited
    shown: list[ShownResponse] = []
    extent = response_extent(rollouts.mask).tolist()
    for rows in _contrasts(score.tolist(), rollouts.group.tolist())[:pairs]:
        for row in rows:
            # What an environment said is shown too; it has no credit.
            ids = rollouts.tokens[row, : extent[row]].tolist()
            pieces = ["⏎" if token in policy.end_tokens else text for token, text in zip(ids, policy.token_texts(ids), strict=True)]
            problem = asked[int(rollouts.group[row])]
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
