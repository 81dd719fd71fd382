"""Wrong diagnoses of coupling, masses, entropy and value: the real source with one piece changed."""

from types import SimpleNamespace

from laws.harness import Edit, loaded_with

MODULES = (
    "diagnose.head_kernel",
    "diagnose.coupling",
    "diagnose.masses",
    "diagnose.entropy",
    "diagnose.value",
)
"""In an order in which every module comes after those that it imports."""


def diagnose_with(edit: Edit | None = None) -> SimpleNamespace:
    return loaded_with(MODULES, edit)


COUPLING: dict[str, Edit] = {
    "the temperature is forgotten": Edit("diagnose.head_kernel", "scale = 1 / (looked_at.temperature * sources.temperature)", "scale = 1"),
    "the temperature divides once": Edit(
        "diagnose.head_kernel", "1 / (looked_at.temperature * sources.temperature)", "1 / sources.temperature"
    ),
    "blocks forget the temperature": Edit("diagnose.head_kernel", " / (left.temperature * right.temperature)", ""),
    "only the last chunk is summed": Edit("diagnose.head_kernel", "total += chunk", "total = chunk"),
    "weights of the first chunk": Edit("diagnose.head_kernel", "weight[run])", "weight[: len(chunk)])"),
    "weights lose their sign": Edit("diagnose.head_kernel", "weight, placed = weight.double()", "weight, placed = weight.double().abs()"),
    "own is another token's weight": Edit("diagnose.head_kernel", "weight[own_index[placed]]", "weight[: int(placed.sum())]"),
    "absent tokens push themselves": Edit("diagnose.head_kernel", "own_index >= 0", "own_index >= -1"),
    "own is counted among the same": Edit("diagnose.head_kernel", "own_index[left, None] != right[None]", "right[None] >= 0"),
    "the same are all": Edit("diagnose.head_kernel", "(vectors.tokens == token).nonzero()", "(vectors.tokens >= 0).nonzero()"),
    "the same are counted among the others": Edit("diagnose.head_kernel", "everything - own - same", "everything - own"),
    "pairs with oneself": Edit("diagnose.head_kernel", "place[left_run, None] < place", "place[left_run, None] <= place"),
    "pairs of one block only": Edit("diagnose.head_kernel", "right_run.start < left_run.start", "right_run.start != left_run.start"),
    "buckets in order of appearance": Edit("diagnose.head_kernel", "low = torch.minimum(", "low = (lambda left, right: left + 0 * right)("),
    "signed sums are magnitudes": Edit("diagnose.head_kernel", "factor, kernel, kernel.abs())", "factor, kernel, kernel)"),
    "same and different change places": Edit("diagnose.coupling", '"same" if kind else "different"', '"different" if kind else "same"'),
    "shares of signed sums": Edit("diagnose.coupling", "part[chosen].abs().sum()", "part[chosen].sum().abs()"),
    "a sample with replacement": Edit("diagnose.coupling", "[:limit].sort()", "[:limit].sort().values[:1].expand(limit).sort()"),
}
"""The kernel and what is summed of it."""

MASSES: dict[str, Edit] = {
    "ungraded responses count": Edit(
        "diagnose.masses", ", ~score.isnan()\n", ", torch.ones_like(score, dtype=torch.bool)\n    score = score.nan_to_num()\n"
    ),
    "padding has credit": Edit("diagnose.masses", "credit.double().where(mask, 0.0)", "credit.double()"),
    "one group of groups": Edit("diagnose.masses", "group.unique(return_inverse=True)[1]", "torch.zeros_like(group)"),
    "both signs push up": Edit("diagnose.masses", "credit.clamp(min=0).sum(-1)", "credit.abs().sum(-1)"),
    "failures are signed": Edit("diagnose.masses", "(-advantage).clamp(min=0)", "advantage.clamp(max=0)"),
    "masses are not per response": Edit("diagnose.masses", "advantage.clamp(min=0)) / graded", "advantage.clamp(min=0))"),
    "a group is judged by its first response": Edit(
        "diagnose.masses",
        "score[known], kind, include_self=False)",
        "score[known], kind, include_self=False) if kind == 'amax' else nothing.index_copy(0, index[known], score[known])",
    ),
    "the taught are dead too": Edit("diagnose.masses", " & ~taught", ""),
    "only the unsolved are dead": Edit("diagnose.masses", 'extreme("amax") == extreme("amin")', 'extreme("amax") == 0'),
    "solving means a score above 1": Edit("diagnose.masses", "score >= 1", "score > 1"),
    "the solved are nearly solved": Edit("diagnose.masses", " + (found.solve_rate == 1).long()", ""),
    "ungraded groups are easy": Edit("diagnose.masses", "bucket.where(found.graded > 0, -1)", "bucket.where(found.graded > 0, 5)"),
    "groups are counted, not weighed": Edit(
        "diagnose.masses", "return float(weight.double().sum()) ** 2 / squares", "return float(len(weight))"
    ),
    "effective of squares": Edit("diagnose.masses", "weight.double().sum()) ** 2", "weight.double().sum())"),
    "a side's centroid is a sum": Edit(
        "diagnose.masses",
        "    positive, negative, one_sided = CentroidSums().add(vectors, advantage, share).finish()",
        "    sums = CentroidSums().add(vectors, advantage, share)\n    (positive, negative), one_sided = sums.sums, min(sums.masses) == 0",
    ),
    "coefficients are ignored": Edit(
        "diagnose.masses", "_side_contrast(vectors, advantage, coefficient)", "_side_contrast(vectors, advantage, 1.0)"
    ),
    "distance to the sum": Edit("diagnose.masses", "(positive - negative).norm()", "(positive + negative).norm()"),
    "one side is compared with nothing": Edit("diagnose.masses", "if one_sided:", "if False:"),
}
"""Masses, groups and centroids."""
ENTROPY: dict[str, Edit] = {
    "the line goes through everything": Edit("diagnose.entropy", "known[-window:]", "known"),
    "the line goes through the oldest": Edit("diagnose.entropy", "known[-window:]", "known[:window]"),
    "steps are numbered anew": Edit(
        "diagnose.entropy", "away = step - step.mean()", "step = torch.arange(len(step)).double()\n    away = step - step.mean()"
    ),
    "the floor is of the last": Edit("diagnose.entropy", "floor_share * known[0][1]", "floor_share * known[-1][1]"),
    "the floor is a number of nats": Edit("diagnose.entropy", "floor_share * known[0][1]", "floor_share"),
    "counted from the window's middle": Edit("diagnose.entropy", " + slope * float(away[-1])", ""),
    "the floor lies at 0": Edit("diagnose.entropy", "(line_now - floor) / -slope", "line_now / -slope"),
    "steps may be negative": Edit("diagnose.entropy", "max((line_now - floor) / -slope, 0.0)", "(line_now - floor) / -slope"),
    "a rise warns too": Edit("diagnose.entropy", "if slope < 0 else math.nan", "if slope != 0 else math.nan"),
    "nothing is collapsed": Edit("diagnose.entropy", "current < floor", "current < 0"),
    "the unmeasured count before": Edit("diagnose.entropy", "else ~after.isnan()", "else after.isnan() | ~after.isnan()"),
    "change is before less after": Edit("diagnose.entropy", "mean_where(after - before, chosen)", "mean_where(before - after, chosen)"),
}
"""The trend and the means."""

VALUE: dict[str, Edit] = {
    "still tokens are boosted": Edit("diagnose.value", "(moved > dead_band)", "(moved > -dead_band)"),
    "suppressed is boosted": Edit("diagnose.value", "(moved < -dead_band)", "(moved > dead_band)"),
    "sides are mixed": Edit("diagnose.value", "known & (table.side == sign)", "known & (table.side != 0)"),
    "unknown values are 0": Edit("diagnose.value", "~(gain.isnan() | moved.isnan())", "~(gain.isnan() & moved.isnan())"),
    "gain is loss": Edit(
        "diagnose.value", 'after - evidence(table, "value_before", value_before)', 'evidence(table, "value_before", value_before) - after'
    ),
    "suppressed less boosted": Edit("diagnose.value", "return up - down", "return down - up"),
    "prompts weigh alike": Edit(
        "diagnose.value",
        "up, down = ((sums @ times.T) / (tokens @ times.T)).unbind()",
        "up, down = ((sums / tokens).nan_to_num() @ times.T / times.sum(-1)).unbind()",
    ),
    "tokens are redrawn": Edit(
        "diagnose.value", "prompts, index = group[either].unique(return_inverse=True)", "prompts = index = torch.arange(int(either.sum()))"
    ),
    "an unseeded draw": Edit("diagnose.value", ", generator=torch.Generator().manual_seed(seed)", ""),
    "half the interval": Edit("diagnose.value", "INTERVAL = (0.025, 0.975)", "INTERVAL = (0.25, 0.75)"),
}
"""Cells, differences and intervals."""
