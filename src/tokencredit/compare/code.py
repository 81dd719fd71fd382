"""Whether two runs were trained by the same code. What leaves the package as it was, changes nothing."""

import hashlib
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).resolve().parents[3]
PACKAGE = "src/tokencredit"


class Code(NamedTuple):
    commit: str | None
    uncommitted: str | None
    """Hash of what differs from the commit inside the package; None where nothing does."""

    @property
    def told(self) -> str:
        name = "no known commit" if self.commit is None else f"commit {self.commit[:12]}"
        return name if self.uncommitted is None else f"{name} with uncommitted changes {self.uncommitted}"


def code_of(environment: Mapping[str, Any]) -> Code:
    """Of a run's env.json, or of this process."""
    parts = re.split(r"^(?=diff --git )", environment["diff"] or "", flags=re.MULTILINE)
    own = "".join(part.strip() + "\n" for part in parts if part.startswith(f"diff --git a/{PACKAGE}/"))
    own += "".join(f"{name} {digest}\n" for name, digest in sorted((environment.get("untracked") or {}).items()))
    return Code(environment["commit"], hashlib.sha256(own.encode()).hexdigest()[:12] if own else None)


def same_code(one: Code, other: Code) -> bool:
    if one.uncommitted != other.uncommitted:
        return False
    if one.commit == other.commit:
        return True
    if one.commit is None or other.commit is None:
        return False
    package = package_at(one.commit)
    return package is not None and package == package_at(other.commit)


@cache
def package_at(commit: str) -> str | None:
    """The hash of the package's files at a commit; None where git cannot tell."""
    asked = ["git", "-C", str(SOURCE), "rev-parse", "--verify", "--quiet", f"{commit}:{PACKAGE}"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
