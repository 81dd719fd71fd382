"""Wrong credit methods: the real source with one piece changed."""

from types import SimpleNamespace

from laws.harness import Edit, loaded_with

MODULES = (
    "credit.masks",
    "credit.ktae",
    "credit.process",
    "shape",
    "rollout.revision",
)
"""In an order in which every module comes after those that it imports."""


def credit_with(edit: Edit | None = None) -> SimpleNamespace:
    return loaded_with(MODULES, edit)


SELECTION: dict[str, Edit] = {
    "a rounding counts as a token": Edit("credit.masks", " * (1 - SLACK)", ""),
    "rounded down": Edit("credit.masks", ".ceil()", ".floor()"),
    "rounded to nearest": Edit("credit.masks", ".ceil()", ".round()"),
    "one token too many": Edit("credit.masks", ".ceil().long()", ".ceil().long() + 1"),
    "the surest tokens are penalised": Edit("credit.masks", "inputs.logp.where(", "(-inputs.logp).where("),
    "later tokens win ties": Edit(
        "credit.masks",
        "inputs.logp.where(inputs.mask, torch.inf).argsort(",
        "inputs.mask.shape[1] - 1 - inputs.logp.where(inputs.mask, torch.inf).flip(-1).argsort(",
    ),
    "padding is ranked": Edit("credit.masks", "inputs.logp.where(inputs.mask, torch.inf)", "inputs.logp"),
    "length is the padded width": Edit(
        "credit.masks", "kept_tokens(inputs.mask.sum(-1), keep=keep)", "kept_tokens(0 * inputs.mask.sum(-1) + len(rank), keep=keep)"
    ),
    "positive responses are filtered too": Edit("credit.masks", " | (inputs.advantage >= 0)[:, None]", ""),
    "only positive responses are filtered": Edit("credit.masks", "(inputs.advantage >= 0)", "(inputs.advantage < 0)"),
    "zero advantage is filtered": Edit("credit.masks", "(inputs.advantage >= 0)", "(inputs.advantage > 0)"),
    "the most decided tokens": Edit("credit.masks", "argsort(descending=True", "argsort(descending=False"),
    "later rows win ties": Edit(
        "credit.masks",
        "inputs.entropy.where(inputs.mask, -torch.inf).flatten().argsort(",
        "inputs.mask.numel() - 1 - inputs.entropy.where(inputs.mask, -torch.inf).flatten().flip(0).argsort(",
    ),
    "padding has entropy": Edit("credit.masks", "inputs.entropy.where(inputs.mask, -torch.inf)", "inputs.entropy"),
    "padding is available": Edit("credit.masks", "inputs.mask.sum()", "torch.tensor(inputs.mask.numel())"),
    "the divisor is never the kept": Edit("credit.masks", 'divisor == "kept" and count', "False"),
    "the divisor is always the kept": Edit("credit.masks", 'divisor == "kept" and count', "count"),
    "the weight is the share": Edit("credit.masks", "int(available) / count", "count / int(available)"),
    "the other side": Edit("credit.masks", 'side == "positive" else', 'side != "positive" else'),
    "zero is on both sides": Edit("credit.masks", "inputs.advantage > 0", "inputs.advantage >= 0"),
    "both sides": Edit("credit.masks", "inputs.advantage < 0", "inputs.advantage != 0"),
    "what the repair left alone": Edit("credit.masks", ".where(inputs.edited, ", ".where(~inputs.edited, "),
    "unchanged is always 0": Edit("credit.masks", "(inputs.edited, unchanged)", "(inputs.edited, 0.0)"),
    "edited tokens weigh more": Edit("credit.masks", "(inputs.edited, unchanged)", "(inputs.edited, unchanged) * (2 - unchanged)"),
}
"""Which tokens keep their credit."""

STATISTICS: dict[str, Edit] = {
    "one tail": Edit(
        "credit.ktae",
        "more_probable = log_chance > log_chance.gather(-1, a.long()[:, None]) + TIE",
        "more_probable = k < a[:, None]",
    ),
    "ties split by rounding": Edit("credit.ktae", "TIE = 1e-7", "TIE = -1e-7"),
    "impossible tables": Edit("credit.ktae", ".where(possible, -torch.inf)", ""),
    "a chance beyond its margins": Edit("credit.ktae", " - _log_choose(column + other, row)[:, None]", ""),
    "p is hardly ever 1": Edit("credit.ktae", "p_value.where(more_probable.any(-1), 1.0)", "p_value * (1 - 1e-12)"),
    "gain in nats": Edit("credit.ktae", " * math.log(2)", ""),
    "gain forgets absence": Edit("credit.ktae", "torch.stack([a, b, c, d])", "torch.stack([a, b, 0 * c, 0 * d])"),
    "gain is a sum": Edit("credit.ktae", "total.clamp(min=1) * math", "math"),
}
"""Fisher's test and the information gain."""

KEYS: dict[str, Edit] = {
    "ungraded responses are wrong": Edit("credit.ktae", "graded = ~inputs.score.isnan()", "graded = torch.ones_like(inputs.score.isnan())"),
    "ungraded responses are siblings": Edit(
        "credit.ktae", "inputs.group, graded, inputs.score >", "inputs.group, graded | True, inputs.score >"
    ),
    "ungraded responses keep their advantage": Edit("credit.ktae", "+ key).where(counted, 0.0)", "+ key).where(inputs.mask, 0.0)"),
    "padding is counted": Edit(
        "credit.ktae", "counted = inputs.mask & graded[:, None]", "counted = graded[:, None].expand_as(inputs.mask)"
    ),
    "key beyond the mask": Edit("credit.ktae", "+ key).where(counted, 0.0)", "+ key)"),
    "groups are pooled": Edit("credit.ktae", "group.unique(return_inverse=True)", "(0 * group).unique(return_inverse=True)"),
    "a group's id is its index": Edit(
        "credit.ktae",
        "group_names, group_index = group.unique(return_inverse=True)",
        "group_names, group_index = group.new_zeros(99), group % 3",
    ),
    "a neighbour's side": Edit("credit.ktae", "once_per_response % rows, len(pairs)", "once_per_response % rows - 1, len(pairs)"),
    "a use counts once per response": Edit(
        "credit.ktae",
        "uses=by_side(pair, row, len(pairs))",
        "uses=by_side(once_per_response // rows, once_per_response % rows, len(pairs))",
    ),
    "a frequency is a count": Edit("credit.ktae", "share = uses / length.clamp(min=1)", "share = uses"),
    "an empty side is divided by": Edit("credit.ktae", "found.siblings.clamp(min=1)).sqrt()", "found.siblings).sqrt()"),
    "the end token has a key": Edit("credit.ktae", "key.where(~ends, 0.0)", "key"),
    "p of 1 is significant": Edit("credit.ktae", ".exp().where(p_value < 1, 0.0)", ".exp()"),
    "a key without direction": Edit("credit.ktae", "(strength * direction / 2)", "(strength * direction.abs() / 2)"),
    "wrong is right": Edit("credit.ktae", "inputs.score > correct_above", "inputs.score <= correct_above"),
    "only what correct responses use more": Edit("credit.ktae", " - wrong / (correct + FREQUENCY_FLOOR)", ""),
    "half a sigmoid": Edit("credit.ktae", "direction / 2).tanh()", "direction).sigmoid()"),
    "the key ignores its top": Edit("credit.ktae", "return top * (", "return ("),
    "the key scales the advantage": Edit("credit.ktae", "inputs.advantage[:, None] + key", "inputs.advantage[:, None] * (1 + key)"),
    "lengths of both sides alike": Edit(
        "credit.ktae", "length / length.mean(-1, keepdim=True).clamp(min=1)", "length / length[:, :1].clamp(min=1)"
    ),
}
"""Counting, and what becomes of the counts."""

STEPS: dict[str, Edit] = {
    "the last step ends at its own start": Edit("credit.process", "score[:, None]], dim=-1)", "mean[:, None]], dim=-1)"),
    "the first value is the sampled one": Edit(
        "credit.process", ".where(~first, mean[:, None])", ".nan_to_num().where(~first | ~inputs.prefix_value.isnan(), mean[:, None])"
    ),
    "the first value is 0": Edit("credit.process", ".where(~first, mean[:, None])", ".where(~first, 0.0)"),
    "ungraded responses are wrong in the mean": Edit(
        "credit.process", "group_statistics(score, inputs", "group_statistics(score.nan_to_num(), inputs"
    ),
    "groups share one mean": Edit("credit.process", "inputs.group)", "0 * inputs.group)"),
    "a gain reaches one token further": Edit("credit.process", ".flip(-1).roll(-1, -1)", ".flip(-1)"),
    "gains are losses": Edit(
        "credit.process", "value.gather(-1, following) - value.gather(-1, start)", "value.gather(-1, start) - value.gather(-1, following)"
    ),
    "values at holes are boundaries": Edit(
        "credit.process", "(inputs.mask & ~inputs.prefix_value.isnan())", "~inputs.prefix_value.isnan()"
    ),
    "dead groups are never skipped": Edit("credit.process", '(std > 0) | (dead_groups == "branch")', "(std >= 0)"),
    "dead groups are always skipped": Edit("credit.process", ' | (dead_groups == "branch")', ""),
    "ungraded responses receive something": Edit(
        "credit.process", "gain.where(inputs.mask & credited[:, None], 0.0)", "gain.nan_to_num(nan=0.5).where(inputs.mask, 0.0)"
    ),
    "credit beyond the mask": Edit("credit.process", "(inputs.mask & credited[:, None], 0.0)", "(credited[:, None], 0.0)"),
}
"""Where a step begins, and what its ends are worth."""

REPAIRS: dict[str, Edit] = {
    "successes are paid too": Edit("shape", "score <= correct_above", "~score.isnan()"),
    "the ungraded are failures": Edit("shape", "score <= correct_above", "~(score > correct_above)"),
    "a bonus for any repair": Edit("shape", "repair_value * repaired.double()", "repair_value * (repaired > 0).double()"),
    "the repair is worth a whole success": Edit("shape", "weight * repair_value * repaired", "weight * repaired"),
    "weight is ignored": Edit("shape", "weight * repair_value * repaired", "repair_value * repaired"),
    "hopeless failures pay": Edit("shape", "repair_value * repaired.double()", "repair_value * (repaired.double() - 0.5)"),
    "insertions leave no mark": Edit(
        "rollout.revision",
        "        marked[min(",
        '        marked[min(edit.src_pos, len(before) - 1)] |= edit.tag != "insert"\n        continue\n        marked[min(',
    ),
    "insertions mark the token before": Edit(
        "rollout.revision", "edit.src_pos, len", 'edit.src_pos - (edit.tag == "insert" and edit.src_pos > 0), len'
    ),
    "marks of the revision": Edit("rollout.revision", "edit.src_pos", "edit.dest_pos"),
    "everything is marked": Edit("rollout.revision", "    return marked", "    return [True] * len(before)"),
    "a replacement is two edits": Edit(
        "rollout.revision", "Levenshtein.distance(before, after)", "Levenshtein.distance(before, after, weights=(1, 1, 2))"
    ),
}
"""What a repair is worth, and what it changed."""
