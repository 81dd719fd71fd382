"""Wrong versions of the findings about an update: one place of the source changed, each a mistake somebody could make."""

from types import SimpleNamespace

from laws.harness import Edit, loaded_with

MODULES = ("diagnose.common", "diagnose.flips", "diagnose.effect", "diagnose.cancellation", "diagnose.drift", "diagnose.tax")

FLIPS: dict[str, Edit] = {
    "a flip is a fall": Edit("diagnose.flips", 'row["suppressed" if side == "positive" else "boosted"]', 'row["suppressed"]'),
    "a change of the band is neither": Edit("diagnose.flips", "change.abs() <= band", "change.abs() < band"),
    "the band is ignored": Edit("diagnose.flips", "mean_where(change > band", "mean_where(change > 1e-4"),
    "the unmeasured did not move": Edit("diagnose.flips", "chosen & ~change.isnan()", "chosen"),
    "no advantage is a side": Edit(
        "diagnose.flips", "_moves(change, table.side == sign, band)", "_moves(change, table.side != -sign, band)"
    ),
}

EFFECT: dict[str, Edit] = {
    "slope of predicted on measured": Edit("diagnose.effect", "predicted @ predicted)", "measured @ measured)"),
    "the error is all that moved": Edit("diagnose.effect", "(measured - predicted).abs()", "measured.abs()"),
    "error in nats": Edit("diagnose.effect", "_median(measured.abs())", "torch.ones(())"),
    "unmeasured tokens count": Edit("diagnose.effect", "predicted.isnan() | measured.isnan()", "predicted.isnan()"),
    "signs of noise": Edit("diagnose.effect", "measured.abs() > DEAD_BAND", "measured.abs() > 0"),
}

CANCELLATION: dict[str, Edit] = {
    "net without size": Edit("diagnose.cancellation", "1 - (positive + negative).abs() /", "1 - (positive + negative) /"),
    "mass of one side": Edit("diagnose.cancellation", "/ (positive.abs() + negative.abs())", "/ (2 * positive.abs())"),
    "tokens cancel one another": Edit("diagnose.cancellation", "sides.sum(0)[chosen].abs().sum()", "sides.sum(0)[chosen].sum().abs()"),
    "compared over other tokens": Edit("diagnose.cancellation", "batch_mass - mini_mass", "mass - mini_mass"),
    "compared over other tokens in the mean": Edit("diagnose.cancellation", "batch_mean - mini_mean", "mean - mini_mean"),
    "no step is a step": Edit("diagnose.cancellation", "table.optimizer_step < 0", "table.optimizer_step < -1"),
    "the damped are amplified": Edit("diagnose.cancellation", '("damped", -mean_effect)', '("damped", mean_effect)'),
}

DRIFT: dict[str, Edit] = {
    "tokens in the order of the table": Edit("diagnose.drift", "in sorted(places[row])]", "in places[row]]"),
    "log-prob, not log-odds": Edit("diagnose.drift", "one.change - two.change)", "one.change)"),
    "worse minus better": Edit("diagnose.drift", "lambda response: -response.score", "lambda response: response.score"),
    "only the last token": Edit("diagnose.drift", "math.fsum(changes[place] for place in at)", "changes[at[-1]]"),
    "all prompts are one": Edit("diagnose.drift", "setdefault(response.group, [])", "setdefault(0, [])"),
    "the same response is a pair": Edit("diagnose.drift", "one.tokens != two.tokens", "one is not two"),
}

TAX: dict[str, Edit] = {
    "nil by every yardstick": Edit("diagnose.tax", ".any(0)", ".all(0)"),
    "KL, not a share of it": Edit("diagnose.tax", ".sum()) / total if", ".sum()) if"),
    "rounding below 0 counts": Edit("diagnose.tax", ".clamp(min=0)", ""),
    "a loss of value is nil": Edit("diagnose.tax", "gain.abs() < nil", "gain < nil"),
    "unknown value is value": Edit("diagnose.tax", "known & ~gain.isnan()", "known"),
    "the ungraded are alive": Edit("diagnose.tax", "graded = ~table.score.isnan()", "graded = table.score.isnan() | True"),
}


def findings_with(edit: Edit | None = None) -> SimpleNamespace:
    return loaded_with(MODULES, edit)
