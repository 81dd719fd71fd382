"""Credit methods: one number per token. `CREDITS` is the table: name -> method."""

from tokencredit.credit.base import CreditInputs, CreditMethod, CreditOutcome
from tokencredit.credit.delta import delta_coefficients, delta_credit
from tokencredit.credit.ktae import ktae_credit
from tokencredit.credit.masks import edit_mask_credit, forking_credit, ntf_credit, one_sided_credit, uniform_credit
from tokencredit.credit.ntf_keep import ntf_keep_credit
from tokencredit.credit.process import process_credit
from tokencredit.credit.sibling_credit import sibling_context_credit, sibling_value_credit

CREDITS: dict[str, CreditMethod] = {
    "uniform": CreditMethod(uniform_credit),
    "delta": CreditMethod(delta_credit, needs=frozenset({"logp", "hidden"})),
    "ntf": CreditMethod(ntf_credit, needs=frozenset({"logp"})),
    "forking": CreditMethod(forking_credit, needs=frozenset({"entropy"})),
    "ktae": CreditMethod(ktae_credit),
    "one-sided": CreditMethod(one_sided_credit),
    "edit-mask": CreditMethod(edit_mask_credit, needs=frozenset({"revisions"})),
    "process": CreditMethod(process_credit, needs=frozenset({"prefix-values"})),
    "ntf-keep": CreditMethod(ntf_keep_credit, needs=frozenset({"logp", "entropy"})),
    "sibling-value": CreditMethod(sibling_value_credit, needs=frozenset({"hidden"})),
    "sibling-context": CreditMethod(sibling_context_credit),
}

__all__ = ["CREDITS", "CreditInputs", "CreditMethod", "CreditOutcome", "delta_coefficients"]
