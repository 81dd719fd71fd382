"""Damage every file of a real checkpoint in every way, byte by byte where it is small, and count what is noticed.

PYTHONPATH=tests python -m soak.damage --flips 200 --out damage.json
"""

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.runs import small_config
from fault.interrupting import interrupted_at, optimizer_class
from tokencredit.storage.manifest import damage


def ways(content: bytes, flips: int, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Bits flipped, ends cut off, something added, a piece swapped for zeros."""
    for at in rng.sample(range(len(content)), min(flips, len(content))):
        yield "bit flipped", content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
    for kept in {0, 1, len(content) // 2, len(content) - 1, *(rng.randrange(len(content)) for _ in range(flips // 10))}:
        yield "truncated", content[:kept]
    yield "grown", content + b"\0"
    start = rng.randrange(len(content))
    zeroed = content[:start] + bytes(len(content[start : start + 512])) + content[start + 512 :]
    if zeroed != content:
        yield "a block of zeros", zeroed


def soak(flips: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    tried: dict[str, dict[str, int]] = {}
    unnoticed: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        config = small_config(steps=2, optimizer={"steps_per_batch": 3})
        checkpoint = interrupted_at(optimizer_class(), "step", 4, config, Path(scratch) / "run")
        for path in sorted(checkpoint.iterdir()):
            content = path.read_bytes()
            counted = tried.setdefault(path.name, {})
            for way, damaged in ways(content, flips, rng):
                path.write_bytes(damaged)
                counted[way] = counted.get(way, 0) + 1
                if damage(checkpoint) is None:
                    unnoticed.append(f"{path.name}: {way}")
            path.unlink()
            counted["removed"] = 1
            if damage(checkpoint) is None:
                unnoticed.append(f"{path.name}: removed")
            path.write_bytes(content)
            print(f"{path.name}: {sum(counted.values())} ways, {len(unnoticed)} unnoticed so far", flush=True)
        assert damage(checkpoint) is None
    return {"files": len(tried), "ways": sum(sum(one.values()) for one in tried.values()), "by_file": tried, "unnoticed": unnoticed}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--flips", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    found = soak(given.flips, given.seed)
    print(json.dumps({name: value for name, value in found.items() if name != "by_file"}))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=2) + "\n")
    raise SystemExit(1 if found["unnoticed"] else 0)


if __name__ == "__main__":
    main()
