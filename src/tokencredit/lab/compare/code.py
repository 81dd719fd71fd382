"""Whether two runs were trained by the same code. What only measures runs or tells of them has trained none."""

import hashlib
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).resolve().parents[3]
PACKAGE = "src/tokencredit"
TELLS = tuple(f"{PACKAGE}/{part}" for part in ("bench/", "card/", "compare/", "report/", "commands/bench", "commands/compare"))
"""A run loads nothing of these while it trains. Which configuration they ask for is compared by itself."""


def trains(path: str) -> bool:
    """Whether another text of this file could be another run."""
    return path.startswith(f"{PACKAGE}/") and not path.startswith(TELLS)


class Code(NamedTuple):
    commit: str | None
    uncommitted: str | None
    """Hash of what differs from the commit, as far as it trains; None where nothing does."""

    @property
    def told(self) -> str:
        name = "no known commit" if self.commit is None else f"commit {self.commit[:12]}"
        return name if self.uncommitted is None else f"{name} with uncommitted changes {self.uncommitted}"


def code_of(environment: Mapping[str, Any]) -> Code:
    """Of a run's env.json, or of this process."""
    parts = re.split(r"^diff --git a/", environment["diff"] or "", flags=re.MULTILINE)
    own = "".join(part.strip() + "\n" for part in parts if any(map(trains, part.partition("\n")[0].split(" b/"))))
    own += "".join(f"{name} {digest}\n" for name, digest in sorted((environment.get("untracked") or {}).items()) if trains(name))
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
    """The hash of the files that train, at a commit; None where git cannot tell."""
    asked = ["git", "-C", str(SOURCE), "ls-tree", "-r", "--full-tree", commit, "--", f"{PACKAGE}/"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    own = [line for line in done.stdout.splitlines() if trains(line.partition("\t")[2])]
    return hashlib.sha256("\n".join(own).encode()).hexdigest()[:12] if own else None
