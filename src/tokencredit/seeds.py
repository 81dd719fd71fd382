"""Private randomness: every generator is derived from (run seed, purpose, step), never the global one."""

import hashlib


def derive_seed(run_seed: int, purpose: str, *index: int) -> int:
    """A 63-bit seed, the same on every machine."""
    text = f"{run_seed}/{purpose}/{'/'.join(str(part) for part in index)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
