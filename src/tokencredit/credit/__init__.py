"""Credit methods: one number per token. `CREDITS` is the table: name -> function."""

from collections.abc import Callable

from tokencredit.credit.base import CreditInputs, CreditMethod, CreditOutcome
from tokencredit.credit.delta import delta_coefficients, delta_credit
from tokencredit.credit.ktae import ktae_credit
from tokencredit.credit.masks import edit_mask_credit, forking_credit, ntf_credit, one_sided_credit, uniform_credit
from tokencredit.credit.ntf_keep import ntf_keep_credit
from tokencredit.credit.process import process_credit
from tokencredit.credit.sibling_credit import sibling_context_credit, sibling_value_credit

CREDITS: dict[str, Callable[..., CreditOutcome]] = {
    "uniform": uniform_credit,
    "delta": delta_credit,
    "ntf": ntf_credit,
    "forking": forking_credit,
    "ktae": ktae_credit,
    "one-sided": one_sided_credit,
    "edit-mask": edit_mask_credit,
    "process": process_credit,
    "ntf-keep": ntf_keep_credit,
    "sibling-value": sibling_value_credit,
    "sibling-context": sibling_context_credit,
}

__all__ = ["CREDITS", "CreditInputs", "CreditMethod", "CreditOutcome", "delta_coefficients"]
