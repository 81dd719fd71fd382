"""Wrong ways to deal rows to ranks, and to say which optimizer steps split a group: the real source with one place changed."""

from types import SimpleNamespace

from laws.harness import Edit, loaded_with

MODULES = ("pipeline.distributed", "batching.microbatch")


def dealing_with(edit: Edit | None = None) -> SimpleNamespace:
    return loaded_with(MODULES, edit)


MICRO_BATCHES: dict[str, Edit] = {
    "spare rows are dropped": Edit("pipeline.distributed", "smallest + (number * ranks + rank < larger)", "smallest"),
    "the next micro-batch begins with the last row of this": Edit(
        "pipeline.distributed", "taken += len(run)", "taken += max(len(run) - 1, 1)"
    ),
    "the last micro-batch takes every spare row": Edit(
        "pipeline.distributed",
        "(number * ranks + rank < larger)",
        "(number == micro_batches - 1) * (larger // ranks + (rank < larger % ranks))",
    ),
    "spare rows go to the last slots": Edit(
        "pipeline.distributed", "number * ranks + rank < larger", "number * ranks + rank >= ranks * micro_batches - larger"
    ),
    "rows in the order given": Edit(
        "pipeline.distributed",
        "ordered = sorted(rows, key=lambda row: (-cost[row], row))\n    smallest",
        "ordered = list(rows)\n    smallest",
    ),
    "ties in the order given": Edit(
        "pipeline.distributed", "key=lambda row: (-cost[row], row))\n    smallest", "key=lambda row: -cost[row])\n    smallest"
    ),
    "shortest rows first": Edit(
        "pipeline.distributed", "key=lambda row: (-cost[row], row))\n    smallest", "key=lambda row: (cost[row], row))\n    smallest"
    ),
    "every rank a run of its own": Edit(
        "pipeline.distributed", "tuple(run[rank::ranks])", "tuple(run[sum(sizes[:rank]) : sum(sizes[: rank + 1])])"
    ),
}
"""Of one optimizer step."""

SHARES: dict[str, Edit] = {
    "direction never changes": Edit("pipeline.distributed", "hand if turn % 2 == 0 else reversed(hand)", "hand"),
    "shares in runs": Edit(
        "pipeline.distributed", "shares[rank].append(row)", "shares[(turn * ranks + rank) * ranks // len(rows)].append(row)"
    ),
    "shares in the order given": Edit(
        "pipeline.distributed",
        "ordered = sorted(rows, key=lambda row: (-cost[row], row))\n    shares",
        "ordered = list(rows)\n    shares",
    ),
    "shares ordered by cost alone": Edit(
        "pipeline.distributed", "key=lambda row: (-cost[row], row))\n    shares", "key=lambda row: -cost[row])\n    shares"
    ),
    "unequal shares are not refused": Edit("pipeline.distributed", "if len(rows) % ranks:", "if False:"),
    "every rank gets the longest rows": Edit("pipeline.distributed", "shares[rank].append(row)", "shares[rank].append(hand[0])"),
}
"""Of a whole batch."""

SPLITTING: dict[str, Edit] = {
    "a group met twice in one step is split": Edit(
        "batching.microbatch", "[{group_of[row] for row in rows} for rows", "[[group_of[row] for row in rows] for rows"
    ),
    "only the later step splits": Edit(
        "batching.microbatch",
        "sum(any(steps_with[name] > 1 for name in groups) for groups in groups_of)",
        "sum(any(name in before for before in groups_of[:at] for name in groups) for at, groups in enumerate(groups_of))",
    ),
    "split groups are counted": Edit(
        "batching.microbatch",
        "sum(any(steps_with[name] > 1 for name in groups) for groups in groups_of)",
        "sum(many > 1 for many in steps_with.values())",
    ),
    "every group of the step must be split": Edit("batching.microbatch", "sum(any(steps_with[name]", "sum(all(steps_with[name]"),
    "a group may lie in two steps": Edit("batching.microbatch", "steps_with[name] > 1", "steps_with[name] > 2"),
    "the first step is left out": Edit("batching.microbatch", "splitting / len(groups_of)", "splitting / max(1, len(groups_of) - 1)"),
    "a number of steps and no share": Edit("batching.microbatch", "return splitting / len(groups_of) if", "return float(splitting) if"),
}
"""Of groups over optimizer steps."""
