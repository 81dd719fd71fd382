"""The conditions that claims are tested under, small enough for one core and half a minute a run."""

from claims.declaration import Setting

BOTH = ("steps-shift", "steps-sharpen")
COMMON = "--sampling.group-size 8 --evaluation.final-problems 256 --evaluation.problems 256"
"""Groups for all, those that are made for one response included, unless an arm says otherwise."""

SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("plain", f"--steps 48 --optimizer.learning-rate 5e-4 --evaluation.every 4 {COMMON}", BOTH, 28),
        # Four optimizer steps of 32 prompts each. As many rollouts as a third more plain steps, in a third of the optimizer steps, each of
        # four times the rollouts: at 5e-4 nothing would have been learned by the end, so the rate grows with the square root.
        Setting(
            "many-prompts",
            f"--steps 16 --sampling.prompts 128 --optimizer.learning-rate 1e-3 --evaluation.every 2 {COMMON}",
            BOTH,
            36,
        ),
        # Eight optimizer steps on every batch, of eight whole groups each, as in `plain`, and as many rollouts in all.
        Setting(
            "off-policy",
            "--steps 24 --sampling.prompts 64 --optimizer.steps-per-batch 8 --batching.type query-preserved "
            f"--optimizer.learning-rate 5e-4 --evaluation.every 2 --diagnose.every 4 {COMMON}",
            BOTH,
            42,
        ),
        Setting("looked-at", f"--steps 48 --optimizer.learning-rate 5e-4 --evaluation.every 4 --diagnose.every 8 {COMMON}", BOTH, 38),
        # The rate is that of the task's preset.
        Setting("multi-turn", f"--task guess --steps 60 --optimizer.learning-rate 1e-3 --evaluation.every 5 {COMMON}", ("guess",), 38),
        Setting("revisions", f"--steps 32 --optimizer.learning-rate 5e-4 --evaluation.every 2 {COMMON}", ("steps-revise",), 25),
    )
}
