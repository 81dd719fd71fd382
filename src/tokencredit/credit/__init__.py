"""One number per token. `CREDITS` is the table: name -> method."""

from tokencredit.credit.delta import delta_coefficients, delta_credit
from tokencredit.credit.stage import CreditInputs, CreditMethod, CreditOutcome
from tokencredit.credit.uniform import uniform_credit

CREDITS: dict[str, CreditMethod] = {
    "uniform": CreditMethod(uniform_credit),
    "delta": CreditMethod(delta_credit, needs=frozenset({"hidden"})),
}

__all__ = ["CREDITS", "CreditInputs", "CreditMethod", "CreditOutcome", "delta_coefficients"]
