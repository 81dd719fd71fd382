"""The embedded task trained end to end through `verl.trainer.main_ppo`: Ray, TransferQueue, agent loop, FSDP2."""

from pathlib import Path
from typing import NamedTuple

from verl_cpu.command import STOCK, Finished, Shape, run_verl
from verl_cpu.integrity import RECORD, Integrity, group_integrity, read_mini_batches
from verl_cpu.scene import make_scene

WHOLE_GROUPS = (
    "algorithm.adv_estimator=tokencredit",
    "trainer.v1.trainer_mode=tokencredit",
    "+tokencredit.recipe=delta",
    "+tokencredit.batching.type=query-preserved",
)
WITH_A_REFERENCE = ("+tokencredit.kl.beta=0.01", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16")
FUNCTIONS = (
    "algorithm.adv_estimator=tokencredit-grpo",
    "actor_rollout_ref.actor.policy_loss.loss_mode=tokencredit-grpo",
    "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
)


SAID = "TOKENCREDIT_VERL_BANNER"
"""As in the plug-in, which is loaded by whoever imports it."""


class RealRun(NamedTuple):
    finished: Finished
    mini_batches: list[set[tuple[str, int]]]
    """`uid` and session of the rows of each optimizer step."""

    @property
    def integrity(self) -> Integrity:
        return group_integrity(self.mini_batches)

    def column(self, name: str) -> list[float]:
        """One number per training step."""
        return [step[name] for step in self.finished.metrics]

    @property
    def rewards(self) -> list[float]:
        return self.column("critic/score/mean")


def real_run(folder: Path, shape: Shape, *words: str, stock: bool = False, seed: int = 0, time_limit: float = 600) -> RealRun:
    """`words` go after those of the bench; a stock run has no plug-in."""
    scene = make_scene(folder / "scene", problems=400, seed=seed)
    record = folder / "mini-batches"
    record.mkdir()
    # Whoever imported verl before has said already that the plug-in is live.
    own = {RECORD: str(record), SAID: "", "VERL_USE_EXTERNAL_MODULES": "verl_cpu.platform,in_verl.unpinned", **(STOCK if stock else {})}
    finished = run_verl(scene, folder / "run", shape, extra_overrides=words, extra_environment=own, time_limit=time_limit)
    return RealRun(finished, read_mini_batches(record))
