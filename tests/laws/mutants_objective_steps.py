"""Wrong DFPO, Clip-Cov, KL-Cov and FIPO: the real source with one place changed."""

from types import SimpleNamespace

from laws.harness import Edit, loaded_with

MODULES = tuple(f"objective.{name}" for name in ("covariance", "dfpo", "fipo"))
"""In the order in which they import one another."""


def objectives_with(edit: Edit | None = None) -> SimpleNamespace:
    return loaded_with(MODULES, edit)


STEP: dict[str, Edit] = {
    "tokens in the order they came": Edit("objective.covariance", "joined[0].argsort()", "torch.arange(len(joined[0]))"),
    "the last micro-batch is the step": Edit("objective.covariance", "torch.cat(column)", "column[-1]"),
    "positions counted from the right": Edit(
        "objective.covariance", "device=inputs.mask.device)", "device=inputs.mask.device) - inputs.mask.shape[1]"
    ),
    "tokens named by their place": Edit(
        "objective.covariance", "response_ids(inputs).long()[:, None]", "torch.arange(len(inputs.mask))[:, None]"
    ),
    "padding is gathered": Edit("objective.covariance", "column.detach()[inputs.mask]", "column.detach().flatten()"),
    "log-probs not centred": Edit("objective.covariance", "(logp - logp.mean())", "logp"),
    "credit not centred": Edit("objective.covariance", "(credit - credit.mean())", "credit"),
    "mean over credited tokens": Edit("objective.covariance", "credit.mean()", "credit[credit != 0].mean()"),
    "one token too many": Edit(
        "objective.covariance", "max(int(share * len(tokens.token_id)), 1)", "int(share * len(tokens.token_id)) + 1"
    ),
    "a small share is nobody": Edit(
        "objective.covariance", "max(int(share * len(tokens.token_id)), 1)", "int(share * len(tokens.token_id))"
    ),
    "the seed is ignored": Edit("objective.covariance", "min(self._seeds)", "0"),
}
"""Gathering, naming and measuring the tokens of a step."""

CHOICE: dict[str, Edit] = {
    "clipped tokens are candidates": Edit("objective.covariance", "~clipped & ", ""),
    "no upper end of the band": Edit("objective.covariance", " & (covariance < cov_high)", ""),
    "no lower end of the band": Edit("objective.covariance", " & (covariance > cov_low)", ""),
    "the first candidates are drawn": Edit("objective.covariance", "random_keys(tokens.token_id[candidates], seed=seed)", "candidates"),
    "lots by position alone": Edit(
        "objective.covariance", "random_keys(tokens.token_id[candidates],", "random_keys(tokens.token_id[candidates] % 2**32,"
    ),
    "share of the candidates": Edit(
        "objective.covariance", "chosen_count(tokens, share)", "max(int(share * len(candidates)), 1)", inside="clip_cov"
    ),
    "drawn tokens keep their loss": Edit("objective.covariance", ".masked_fill(is_chosen(inputs, statistic), 0.0)", ""),
    "the smallest covariances": Edit("objective.covariance", "descending=True", "descending=False"),
    "covariance without its sign": Edit(
        "objective.covariance", "credit_covariance(tokens)", "credit_covariance(tokens).abs()", inside="kl_cov"
    ),
    "everybody is penalised": Edit("objective.covariance", " * is_chosen(inputs, statistic)", ""),
    "drift with its sign": Edit("objective.covariance", "(inputs.logp - old_logp).abs()", "(inputs.logp - old_logp)"),
    "penalised tokens need no pass": Edit(
        "objective.covariance",
        "statistic=partial(ChosenTokens, choose))",
        "statistic=partial(ChosenTokens, choose), silent_without_credit=True)",
    ),
}
"""Who is drawn, who is ranked first, and what happens to them."""

WEIGHT: dict[str, Edit] = {
    "the largest for the smallest": Edit("objective.dfpo", '"amin"', '"amax"'),
    "one group for all": Edit("objective.dfpo", "torch.unique(group, return_inverse=True)[1]", "torch.zeros_like(group)"),
    "an empty response is in the minimum": Edit("objective.dfpo", "nan=torch.inf", "nan=1.0"),
    "divided by the length of A": Edit("objective.dfpo", "overlap / square", "overlap / square.sqrt()"),
    "projected onto ones": Edit("objective.dfpo", "overlap / square, 0.0) * advantage", "overlap / square, 0.0)"),
    "always floored": Edit("objective.dfpo", "weight.clamp(min=0) if floor else weight", "weight.clamp(min=0)"),
    "never floored": Edit("objective.dfpo", "weight.clamp(min=0) if floor else weight", "weight"),
    "weights are differentiated": Edit("objective.dfpo", "(inputs.logp - inputs.old_logp).detach()", "(inputs.logp - inputs.old_logp)"),
    "weights without the old policy": Edit("objective.dfpo", "(inputs.logp - inputs.old_logp).detach()", "inputs.logp.detach()"),
    "not transformed": Edit("objective.dfpo", "transform=self.transform, floor", 'transform="none", floor'),
    "always transformed": Edit("objective.dfpo", "transform=self.transform, floor", 'transform="min-replace", floor'),
    "divided by length afterwards": Edit(
        "objective.dfpo", "-weight[:, None] *", "-weight[:, None] / inputs.mask.sum(-1, True).clamp(min=1) *"
    ),
    "weights by place": Edit("objective.dfpo", "statistic.of(response_ids(inputs))", "statistic.weight[: len(inputs.mask)]"),
    "padding is length": Edit("objective.dfpo", "length=inputs.mask.sum(-1)", "length=(inputs.mask.sum(-1) * 0 + inputs.mask.shape[1])"),
    "folded the wrong way": Edit(
        "objective.dfpo", "group_statistics(length, group).mean / length", "length / group_statistics(length, group).mean"
    ),
    "folded with the batch's mean length": Edit("objective.dfpo", "group_statistics(length, group)", "group_statistics(length, 0 * group)"),
    "an ungraded response is weighed": Edit("objective.dfpo", "(length > 0) & ~advantage.isnan()", "length > 0"),
    "an ungraded response poisons its group": Edit("objective.dfpo", "advantage.nan_to_num(), group", "advantage, group"),
    "an ungraded response is a failure": Edit("objective.dfpo", "advantage.nan_to_num(), group", "advantage.nan_to_num(nan=-1.0), group"),
}
"""Sequence weights and what is made of them."""

FUTURE: dict[str, Edit] = {
    "the past for the future": Edit(
        "objective.fipo", "(position[:, None] - position).clamp(min=0)).tril()", "(position - position[:, None]).clamp(min=0)).triu()"
    ),
    "the token itself left out": Edit("objective.fipo", ".tril()", ".tril(-1)"),
    "carried one place short": Edit("objective.fipo", "(block - position)", "(block - position - 1)"),
    "blocks decay like tokens": Edit("objective.fipo", "gamma=gamma**block", "gamma=gamma"),
    "one block after another only": Edit(
        "objective.fipo", "discounted_future_sum(within[:, 1:, 0], gamma=gamma**block, block=block)", "within[:, 1:, 0]"
    ),
    "decay is no half-life": Edit("objective.fipo", "2.0 ** (-1.0 / decay)", "2.718281828459045 ** (-1.0 / decay)"),
    "holes drift too": Edit("objective.fipo", "mask & (ratio <= dual_clip), 0.0", "ratio <= dual_clip, 0.0"),
    "stray tokens drift too": Edit("objective.fipo", "mask & (ratio <= dual_clip), 0.0", "mask, 0.0"),
    "drift without the old policy": Edit("objective.fipo", "log_ratio = (logp - old_logp)", "log_ratio = logp"),
    "weights without bounds": Edit("objective.fipo", ".clamp(1 - weight_low, 1 + weight_high)", ""),
    "bounds swapped": Edit("objective.fipo", ".clamp(1 - weight_low, 1 + weight_high)", ".clamp(1 - weight_high, 1 + weight_low)"),
    "safety for both signs": Edit("objective.fipo", "(credit < 0) & (ratio > safety)", "ratio > safety"),
    "no safety": Edit("objective.fipo", "(credit < 0) & (ratio > safety)", "credit != credit"),
    "one stray token drops a response": Edit("objective.fipo", "(strayed.sum(-1) > 1)", "(strayed.sum(-1) > 0)"),
    "no response is dropped": Edit("objective.fipo", "(strayed.sum(-1) > 1)", "(strayed.sum(-1) > 10**9)"),
    "stray tokens of either sign": Edit("objective.fipo", "mask & (credit < 0) & (importance", "mask & (importance"),
    "stray tokens in holes": Edit("objective.fipo", "mask & (credit < 0) & (importance", "(credit < 0) & (importance"),
    "the importance is differentiated": Edit(
        "objective.fipo",
        "clipped_surrogate(logp, old_logp, weight * credit,",
        "future_weight.__wrapped__(logp, old_logp, credit, mask) * clipped_surrogate(logp, old_logp, credit,",
    ),
}
"""Future sums, the weight made of them, and dropped responses."""
