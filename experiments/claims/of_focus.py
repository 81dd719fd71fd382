"""Claims about which prompts and which sign weigh more: FADE."""

from claims.declaration import Claim, Study, against

QUICK = "fade:advantage.ema-new-weight=0.1"

FADE = Study(
    name="fade",
    paper="FADE, 2607.01490",
    arms={"plain": ("grpo", "fade", QUICK)},
    columns=("pass_at_k", "pass_at_4", "entropy", "mean_entropy", "area", "final", "to_threshold"),
    names={QUICK: "fade, quick averages (0.1)"},
    remarks=(
        "pass@8 after a run is near its ceiling, so pass@4, averaged over the evaluations of a run, decides",
        "With 2 % of every new batch in its averages, FADE's entropy term hardly acts within 48 steps; with 10 % it does",
    ),
    claims=tuple(
        claim
        for recipe, name in (("fade", "fade"), (QUICK, "fade, quick"))
        for claim in (
            Claim(
                f"FADE raises pass@k over GRPO ({name}).",
                "pass@4, mean over a run, above GRPO's",
                "below GRPO's",
                (
                    against(f"{name} - grpo", "plain", recipe, "grpo", "pass_at_4", "more"),
                    against(f"{name} - grpo", "plain", recipe, "grpo", "pass_at_k", "more", decides=False),
                ),
            ),
            Claim(
                f"FADE keeps more entropy than GRPO at no loss of accuracy ({name}).",
                "end entropy above GRPO's, area not more than 1 point below",
                "end entropy below, or area more than 1 point below",
                (
                    against(f"{name} - grpo", "plain", recipe, "grpo", "entropy", "more"),
                    against(f"{name} - grpo", "plain", recipe, "grpo", "area", "no worse", margin=0.01),
                    against(f"{name} - grpo", "plain", recipe, "grpo", "mean_entropy", "more", decides=False),
                    against(f"{name} - grpo", "plain", recipe, "grpo", "final", "more", decides=False),
                ),
            ),
        )
    ),
    not_testable=(
        "pass@100, and thousands of training steps, over which its schedules were made.",
        "The paper's clip, divisor and group size were not found; PPO's 0.2, the token mean and 8 stand in.",
    ),
)
