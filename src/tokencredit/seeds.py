"""Seeds: every generator is seeded by (run seed, purpose, step); the global generator is never used."""

import hashlib


def derive_seed(run_seed: int, purpose: str, *index: int) -> int:
    """A 63-bit seed from a hash of the arguments, the same on every machine."""
    text = f"{run_seed}/{purpose}/{'/'.join(str(part) for part in index)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
