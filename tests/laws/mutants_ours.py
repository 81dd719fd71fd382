"""Wrong versions of the credit methods that are ours: the real source with one piece changed."""

from types import SimpleNamespace

from laws.harness import Edit, loaded_with

MODULES = (
    "credit.base",
    "credit.delta.vectors",
    "credit.delta.accumulators",
    "credit.delta.algorithm",
    "credit.delta.method",
    "credit.masks",
    "credit.ntf_keep",
    "credit.siblings",
    "credit.sibling_credit",
)
"""In an order in which every module comes after those that it imports."""


def ours_with(edit: Edit | None = None) -> SimpleNamespace:
    return loaded_with(MODULES, edit)


MOMENTUM: dict[str, Edit] = {
    "the past counts without momentum": Edit(
        "credit.delta.accumulators",
        "        if past is None or not momentum:",
        "        momentum = momentum or 0.5\n        if past is None:",
    ),
    "the past is all there is": Edit("credit.delta.accumulators", "* (momentum / 2)", "* (1 / 2)"),
    "half the past": Edit("credit.delta.accumulators", "* (momentum / 2)", "* (momentum / 4)"),
    "the midpoint moves": Edit("credit.delta.accumulators", "negative=self.negative - shift", "negative=self.negative"),
    "momentum turns away": Edit(
        "credit.delta.accumulators",
        "self.positive + shift, negative=self.negative - shift",
        "self.positive - shift, negative=self.negative + shift",
    ),
    "scopes count alike": Edit("credit.delta.method", "first.direction, result.mass)", "first.direction, 1.0)"),
    "what was blended is remembered": Edit(
        "credit.delta.algorithm", "temperature, first, sum", "temperature, first.with_momentum(options.past, options.momentum), sum"
    ),
    "what was refined is remembered": Edit("credit.delta.algorithm", "temperature, first, sum", "temperature, centroids, sum"),
    "the newest is forgotten": Edit(
        "credit.delta.method", "encode_tensor(momentum * past + (1 - momentum) * direction)", "encode_tensor(past)"
    ),
    "only the newest is remembered": Edit(
        "credit.delta.method", "encode_tensor(momentum * past + (1 - momentum) * direction)", "encode_tensor(direction)"
    ),
    "each rank its own masses": Edit(
        "credit.delta.algorithm",
        "sums = options.reduce(CentroidSums().add(vectors, advantage))",
        "sums = CentroidSums().add(vectors, advantage)",
    ),
}
"""The direction over steps."""

EXPLORING: dict[str, Edit] = {
    "the share falls": Edit("credit.ntf_keep", "(1 - keep) * (1 - strength)", "(1 - keep) * strength"),
    "the share is never whole": Edit("credit.ntf_keep", "(1 - keep) * (1 - strength)", "(1 - keep) * (1 - strength) / 2"),
    "the floor moves": Edit("credit.ntf_keep", 'initial = state.get("initial_entropy", entropy)', "initial = entropy"),
    "steps are not counted": Edit("credit.ntf_keep", '"steps": done + 1', '"steps": done'),
    "padding has entropy": Edit("credit.ntf_keep", "masked_mean(inputs.entropy.double(), inputs.mask)", "inputs.entropy.mean()"),
    "the slope of the own logit": Edit("credit.ntf_keep", "expected_push(push, entropy) - push", "-push"),
    "slopes reversed for some": Edit(
        "credit.ntf_keep", "expected_push(push, entropy) - push", "(expected_push(push, entropy) - push).abs()"
    ),
    "padding has a slope": Edit(
        "credit.ntf_keep", "expected_push(push, entropy) - push", "entropy_push(inputs.logp, inputs.entropy).mean() - push"
    ),
    "half of the pull": Edit("credit.ntf_keep", "credit - slope * (", "credit - 0.5 * slope * ("),
    "everybody is projected": Edit("credit.ntf_keep", "    slope = slope.where(chosen, 0.0)\n", ""),
    "the length of slopes is forgotten": Edit("credit.ntf_keep", "/ size.where(size > 0, 1.0)", "/ size.where(size > 0, 1.0).sqrt()"),
    "dropped tokens come back": Edit("credit.ntf_keep", "negative = kept & (advantage < 0)", "negative = inputs.mask & (advantage < 0)"),
    "only positive tokens": Edit("credit.ntf_keep", "negative | (inputs.mask & (advantage > 0))", "inputs.mask & (advantage > 0)"),
}
"""Fading and the projection."""

SIBLINGS: dict[str, Edit] = {
    "the own response speaks": Edit("credit.siblings", " & ~torch.eye(seq, dtype=torch.bool, device=present.device)[:, None, :]", ""),
    "places that do not exist speak": Edit("credit.siblings", "similar = similarity(run).where(present, 0.0)", "similar = similarity(run)"),
    "any token is the same": Edit("credit.siblings", "written.flatten()[run, None, None] == written", "written == written"),
    "the end is worth the mean": Edit("credit.siblings", ".where(~last, outcome)", ".where(~last, advantage.mean())"),
    "the end is as unsure as any place": Edit("credit.siblings", "spread.roll(-1, 1).where(~last, 0.0) - 2", "spread.roll(-1, 1) - 2"),
    "common neighbours count twice": Edit(
        "credit.siblings", "unsure = spread + later_spread - 2 * common", "unsure = spread + later_spread"
    ),
    "a neighbour's advantage": Edit("credit.siblings", "_siblings(advantage[members], ", "_siblings(advantage[members].roll(1), "),
    "losses are forgotten": Edit("credit.siblings", "Gains((after - value)", "Gains((after - value).clamp(min=0)"),
    "gains are losses": Edit("credit.siblings", "Gains((after - value)", "Gains((value - after)"),
    "no neighbour is no doubt": Edit("credit.siblings", ".where(known, torch.inf)", ".where(known, 0.0)"),
    "doubt is trust": Edit("credit.siblings", "trust = (signal / (signal + error)", "trust = (error / (signal + error)"),
    "shrinkage is ignored": Edit("credit.siblings", "error = shrinkage * noise", "error = noise"),
    "noise is fixed": Edit("credit.siblings", "error = shrinkage * noise *", "error = shrinkage *"),
    "drawn to nothing": Edit("credit.siblings", "blended = 1 + trust * (gain / scale - 1)", "blended = trust * gain / scale"),
    "groups are pooled": Edit("credit.siblings", "((group == name) & graded", "((group == group) & graded"),
    "the ungraded speak": Edit("credit.siblings", "(group == name) & graded & (length > 0)", "(group == name) & (length > 0)"),
    "the size is of each token": Edit("credit.siblings", "(coefficient.abs() * of_token).sum()", "coefficient.abs().sum()"),
    "the size is a sum with signs": Edit("credit.siblings", "(coefficient.abs() * of_token)", "(coefficient * of_token)"),
    "each rank its own siblings": Edit(
        "credit.siblings", "responses = reduce(SharedResponses({this_rank: local}))", "responses = SharedResponses({this_rank: local})"
    ),
    "a rank takes the first part": Edit("credit.siblings", "first = list(responses.by_rank).index(this_rank)", "first = 0"),
    "a run forgets where it starts": Edit(
        "credit.siblings", "run = slice(start, min(start + step, seq * tok))", "run = slice(0, min(step, seq * tok - start))"
    ),
    "a width of every place": Edit("credit.sibling_credit", "distance(some, some)[row[:, None] != row].median()", "squared.median()"),
    "distances without a root": Edit(
        "credit.sibling_credit", "(-distance(run, slice(None)) / scale).exp()", "(-distance(run, slice(None)).square() / scale).exp()"
    ),
    "cosine is forgotten": Edit("credit.sibling_credit", 'if metric == "cosine":', "if False:"),
    "a gap in the context": Edit("credit.sibling_credit", "same &= last", "same = last"),
    "the context holds the token": Edit("credit.sibling_credit", "[:, : tokens.shape[1]].flip(-1)", "[:, 1:].flip(-1)"),
    "nothing in common is something": Edit("credit.sibling_credit", "if matched else 0.0", "if True else 0.0"),
}
"""Who speaks for a place, what is believed of it, and what becomes of it."""
