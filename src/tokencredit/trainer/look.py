"""One training step that was watched, judged: table, evidence, what the budgets pay for, findings."""

from collections.abc import Collection, Sequence

from tokencredit.config.train import TrainConfig
from tokencredit.diagnose import FINDINGS
from tokencredit.diagnose.table import token_table
from tokencredit.forward.padded import head_weight
from tokencredit.optim.microscope import memory_for_a_look
from tokencredit.seeds import derive_seed
from tokencredit.tasks import Task, format_classes
from tokencredit.trainer.findings import Diagnosis, Subject, diagnose
from tokencredit.trainer.monte_carlo import NOTHING_SAMPLED, sample_evidence
from tokencredit.trainer.step import TrainedBatch
from tokencredit.trainer.tokens import TokenLabels


def judge(
    trained: TrainedBatch,
    labels: TokenLabels,
    task: Task | None,
    config: TrainConfig,
    *,
    step: int,
    history: Sequence[tuple[int, float]],
    only: Collection[str] = FINDINGS,
) -> Diagnosis:
    """`step` counts from 1. Without a task (rollouts of another trainer) nothing can be sampled and no class is known as format."""
    look = trained.look
    assert look is not None, "this step was not watched"
    with memory_for_a_look():
        evidence = look.evidence()
    rollouts = trained.credited.rollouts
    table = token_table(trained.credited, trained.plan, text=labels.text, token_class=labels.token_class)
    seed = derive_seed(config.seed, "diagnose", step)
    sampled = NOTHING_SAMPLED
    if task is not None:
        change = (evidence.moved.after.logp - evidence.moved.before.logp)[rollouts.mask].cpu()
        sampled = sample_evidence(look.before, look.policy, task, trained.problems, rollouts, table, change, config, seed=seed, only=only)
    subject = Subject(
        table=table,
        credited=trained.credited,
        plan=trained.plan,
        evidence=evidence,
        head=head_weight(look.before.model),
        temperature=config.sampling.temperature,
        seed=seed,
        format_classes=frozenset() if task is None else format_classes(task),
        history=history,
        sampled=sampled,
    )
    return diagnose(subject, config.diagnose, step=step, only=only)
