"""Wrong DFPO, Clip-Cov, KL-Cov and FIPO: the real source with one place changed, loaded beside the real modules."""

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

from laws.mutants_delta import Edit

MODULES = ("whole_step", "covariance", "clip_cov", "kl_cov", "dfpo", "fipo")
"""In the order in which they import one another."""


def objectives_with(edit: Edit | None = None) -> SimpleNamespace:
    """Every name of these modules, freshly executed; without an edit, the code as it is."""
    names: dict[str, object] = {}
    with mock.patch.dict(sys.modules):
        for module in MODULES:
            qualified = f"tokencredit.objective.{module}"
            path = Path(str(importlib.import_module(qualified).__file__))
            source = path.read_text()
            if edit is not None and edit.module == module:
                if source.count(edit.right) != 1:
                    raise ValueError(f"{module}.py holds {edit.right!r} {source.count(edit.right)} times; a mutant needs it once")
                source = source.replace(edit.right, edit.wrong)
            sys.modules[qualified] = ModuleType(qualified)
            exec(compile(source, path, "exec"), vars(sys.modules[qualified]))
            names |= vars(sys.modules[qualified])
    return SimpleNamespace(**names)


STEP: dict[str, Edit] = {
    "tokens in the order they came": Edit("whole_step", "joined[0].argsort()", "torch.arange(len(joined[0]))"),
    "the last micro-batch is the step": Edit("whole_step", "torch.cat(column)", "column[-1]"),
    "positions counted from the right": Edit(
        "covariance", "device=inputs.mask.device)", "device=inputs.mask.device) - inputs.mask.shape[1]"
    ),
    "tokens named by their place": Edit("covariance", "row_names(inputs).long()[:, None]", "torch.arange(len(inputs.mask))[:, None]"),
    "padding is gathered": Edit("covariance", "column.detach()[inputs.mask]", "column.detach().flatten()"),
    "log-probs not centred": Edit("covariance", "(logp - logp.mean())", "logp"),
    "credit not centred": Edit("covariance", "(credit - credit.mean())", "credit"),
    "mean over credited tokens": Edit("covariance", "credit.mean()", "credit[credit != 0].mean()"),
    "one token too many": Edit("covariance", "max(int(share * len(tokens.name)), 1)", "int(share * len(tokens.name)) + 1"),
    "a small share is nobody": Edit("covariance", "max(int(share * len(tokens.name)), 1)", "int(share * len(tokens.name))"),
    "the seed is ignored": Edit("covariance", "min(self._seeds)", "0"),
}
"""Gathering, naming and measuring the tokens of a step."""

CHOICE: dict[str, Edit] = {
    "clipped tokens are candidates": Edit("clip_cov", "~clipped & ", ""),
    "no upper end of the band": Edit("clip_cov", " & (covariance < cov_high)", ""),
    "no lower end of the band": Edit("clip_cov", " & (covariance > cov_low)", ""),
    "the first candidates are drawn": Edit("clip_cov", "lots(tokens.name[candidates], seed=seed)", "candidates"),
    "lots by position alone": Edit("clip_cov", "lots(tokens.name[candidates],", "lots(tokens.name[candidates] % 2**32,"),
    "share of the candidates": Edit("clip_cov", "number_of(tokens, share)", "max(int(share * len(candidates)), 1)"),
    "drawn tokens keep their loss": Edit("clip_cov", ".masked_fill(is_chosen(inputs, statistic), 0.0)", ""),
    "the smallest covariances": Edit("kl_cov", "descending=True", "descending=False"),
    "covariance without its sign": Edit("kl_cov", "credit_covariance(tokens)", "credit_covariance(tokens).abs()"),
    "everybody is penalised": Edit("kl_cov", " * is_chosen(inputs, statistic)", ""),
    "drift with its sign": Edit("kl_cov", "(inputs.logp - old_logp).abs()", "(inputs.logp - old_logp)"),
    "penalised tokens need no pass": Edit(
        "kl_cov", "statistic=partial(ChosenTokens, choose))", "statistic=partial(ChosenTokens, choose), silent_without_credit=True)"
    ),
}
"""Who is drawn, who is ranked first, and what happens to them."""

WEIGHT: dict[str, Edit] = {
    "the largest for the smallest": Edit("dfpo", '"amin"', '"amax"'),
    "one group for all": Edit("dfpo", "torch.unique(group, return_inverse=True)[1]", "torch.zeros_like(group)"),
    "an empty response is in the minimum": Edit("dfpo", "nan=torch.inf", "nan=1.0"),
    "divided by the length of A": Edit("dfpo", "overlap / square", "overlap / square.sqrt()"),
    "projected onto ones": Edit("dfpo", "overlap / square, 0.0) * advantage", "overlap / square, 0.0)"),
    "always floored": Edit("dfpo", "weight.clamp(min=0) if floor else weight", "weight.clamp(min=0)"),
    "never floored": Edit("dfpo", "weight.clamp(min=0) if floor else weight", "weight"),
    "no stop-gradient": Edit("dfpo", "(inputs.logp - inputs.old_logp).detach()", "(inputs.logp - inputs.old_logp)"),
    "weights without the old policy": Edit("dfpo", "(inputs.logp - inputs.old_logp).detach()", "inputs.logp.detach()"),
    "not transformed": Edit("dfpo", "transform=self.transform, floor", 'transform="none", floor'),
    "always transformed": Edit("dfpo", "transform=self.transform, floor", 'transform="min-replace", floor'),
    "divided by length afterwards": Edit("dfpo", "-weight[:, None] *", "-weight[:, None] / inputs.mask.sum(-1, True).clamp(min=1) *"),
    "weights by place": Edit("dfpo", "statistic.of(row_names(inputs))", "statistic.weight[: len(inputs.mask)]"),
    "padding is length": Edit("dfpo", "length=inputs.mask.sum(-1)", "length=(inputs.mask.sum(-1) * 0 + inputs.mask.shape[1])"),
    "folded the wrong way": Edit("dfpo", "group_statistics(length, group).mean / length", "length / group_statistics(length, group).mean"),
    "folded with the batch's mean length": Edit("dfpo", "group_statistics(length, group)", "group_statistics(length, 0 * group)"),
}
"""Sequence weights and what is made of them."""

FUTURE: dict[str, Edit] = {
    "the past for the future": Edit(
        "fipo", "(place[:, None] - place).clamp(min=0)).tril()", "(place - place[:, None]).clamp(min=0)).triu()"
    ),
    "the token itself left out": Edit("fipo", ".tril()", ".tril(-1)"),
    "carried one place short": Edit("fipo", "(block - place)", "(block - place - 1)"),
    "blocks decay like tokens": Edit("fipo", "gamma=gamma**block", "gamma=gamma"),
    "one block after another only": Edit(
        "fipo", "discounted_future_sum(within[:, 1:, 0], gamma=gamma**block, block=block)", "within[:, 1:, 0]"
    ),
    "decay is no half-life": Edit("fipo", "2.0 ** (-1.0 / decay)", "2.718281828459045 ** (-1.0 / decay)"),
    "holes drift too": Edit("fipo", "mask & (ratio <= dual_clip), 0.0", "ratio <= dual_clip, 0.0"),
    "stray tokens drift too": Edit("fipo", "mask & (ratio <= dual_clip), 0.0", "mask, 0.0"),
    "drift without the old policy": Edit("fipo", "log_ratio = (logp - old_logp)", "log_ratio = logp"),
    "weights without bounds": Edit("fipo", ".clamp(1 - weight_low, 1 + weight_high)", ""),
    "bounds swapped": Edit("fipo", ".clamp(1 - weight_low, 1 + weight_high)", ".clamp(1 - weight_high, 1 + weight_low)"),
    "safety for both signs": Edit("fipo", "(credit < 0) & (ratio > safety)", "ratio > safety"),
    "no safety": Edit("fipo", "(credit < 0) & (ratio > safety)", "credit != credit"),
    "one stray token drops a response": Edit("fipo", "(strayed.sum(-1) > 1)", "(strayed.sum(-1) > 0)"),
    "no response is dropped": Edit("fipo", "(strayed.sum(-1) > 1)", "(strayed.sum(-1) > 10**9)"),
    "stray tokens of either sign": Edit("fipo", "mask & (credit < 0) & (importance", "mask & (importance"),
    "stray tokens in holes": Edit("fipo", "mask & (credit < 0) & (importance", "(credit < 0) & (importance"),
    "no stop-gradient": Edit(
        "fipo",
        "clipped_surrogate(logp, old_logp, weight * credit,",
        "future_weight.__wrapped__(logp, old_logp, credit, mask) * clipped_surrogate(logp, old_logp, credit,",
    ),
}
"""Future sums, the weight made of them, and dropped responses."""
