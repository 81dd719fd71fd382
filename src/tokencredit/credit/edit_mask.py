"""IBPO's mask: a repaired failure is blamed only where the repair changed it (2605.16302)."""

from tokencredit.credit.base import CreditInputs, CreditOutcome, State, scale_advantage


def edit_mask_credit(inputs: CreditInputs, state: State, *, unchanged: float = 0.0) -> CreditOutcome:
    """c_it = 1 where a successful revision changed the token, else `unchanged`; responses without a revision count as changed."""
    if inputs.edited is None:
        raise ValueError("edited is missing; the edit mask needs revisions of the failed responses")
    return scale_advantage(inputs.edited.to(inputs.advantage.dtype).where(inputs.edited, unchanged), inputs, state)
