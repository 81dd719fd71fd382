"""Programs that nobody trusts, run in a child that may not do much. `run_program` is the whole interface.

What this does not cover is written in docs/sandbox.md, first.
"""

from tokencredit.grade.sandbox.choose import Isolation, settle
from tokencredit.grade.sandbox.end import ProgramEnd, SandboxError
from tokencredit.grade.sandbox.limits import CodeLimits
from tokencredit.grade.sandbox.run import Settled, run_program

__all__ = ["CodeLimits", "Isolation", "ProgramEnd", "SandboxError", "Settled", "run_program", "settle"]
