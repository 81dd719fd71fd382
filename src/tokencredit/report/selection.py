"""Selects the training steps and prompts that fit on the page: evenly spread steps, always with the first and the last."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from tokencredit.report.blocks import OF_FINDINGS, page_json, rounded, token_block
from tokencredit.report.run_reader import Run
from tokencredit.report.token_view import StepTokens, number, plan_grid, read_step
from tokencredit.text import sanitize_values

PAGE_BUDGET = 5_000_000
"""Maximum size of a page in bytes."""

DATA_BUDGET = 4_000_000
"""Bytes for the tokens and findings of all runs; charts and text take the rest of the page."""

FEWEST_STEPS, MOST_STEPS = 5, 60
"""Steps of one run on the page. To reach the minimum, each step shows fewer prompts; the maximum limits the files to read."""


@dataclass(frozen=True)
class Shown:
    """The data blocks of one run: `tokens` and `about` (findings and plan) as page JSON by step."""

    tokens: dict[int, str] = field(default_factory=dict)
    about: dict[int, str] = field(default_factory=dict)
    left_out: list[int] = field(default_factory=list)
    some_prompts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Step -> number of prompts on the page, number of prompts in the step; only for steps that do not fit completely."""


def outside_in(steps: Sequence[int]) -> Iterator[int]:
    """Yield the last step, the first, then always the step farthest from those already yielded (of two, the earlier)."""
    if not steps:
        return
    yield steps[-1]
    distance = {step: steps[-1] - step for step in steps[:-1]}
    if distance:
        yield steps[0]
        distance = {step: min(steps[-1] - step, step - steps[0]) for step in steps[1:-1]}
    while distance:
        farthest = max(distance, key=lambda step: distance[step])
        yield farthest
        del distance[farthest]
        distance = {step: min(far, abs(step - farthest)) for step, far in distance.items()}


def choose(run: Run, budget: int) -> Shown:
    """The data of as many steps as fit the budget. If fewer than FEWEST_STEPS fit, each step shows only the prompts that fit its part."""
    shown = Shown()
    known = sorted({*run.token_steps, *run.finding_steps})
    order = list(islice(outside_in(known), MOST_STEPS))
    first = [_blocks(run, step) for step in order[:FEWEST_STEPS]]
    part = fair_part([one.size for one in first], budget)
    spent = 0
    for place, step in enumerate(order):
        one = first[place] if place < len(first) else _blocks(run, step)
        if place < len(first) and one.size > part:
            one = _fitting(one, part)
        elif place >= len(first) and spent + one.size > budget:
            break
        spent += one.size
        shown.about[step] = one.about
        if one.tokens is not None:
            shown.tokens[step] = one.block
            if one.prompts < len(one.tokens.by_group):
                shown.some_prompts[step] = (one.prompts, len(one.tokens.by_group))
    shown.left_out.extend(step for step in known if step not in shown.about)
    return shown


class _Blocks(NamedTuple):
    """The data of one step as page JSON, and the number of prompts in it."""

    tokens: StepTokens | None
    about: str
    block: str
    prompts: int

    @property
    def size(self) -> int:
        return len(self.about.encode()) + len(self.block.encode())


def _blocks(run: Run, step: int) -> _Blocks:
    tokens = read_step(run, step) if step in run.token_steps else None
    about = page_json(_about(run, step, tokens))
    return _Blocks(tokens, about, "", 0) if tokens is None else _Blocks(tokens, about, page_json(token_block(tokens)), len(tokens.by_group))


def fair_part(sizes: Sequence[int], budget: int) -> int:
    """The largest part p such that the sum of min(size, p) stays within the budget."""
    left, part = budget, budget
    for taken, size in enumerate(sorted(sizes)):
        part = left // (len(sizes) - taken)
        if size > part:
            return part
        left -= size
    return max(sizes, default=part)


def _fitting(full: _Blocks, part: int) -> _Blocks:
    """Keep the prompts that fit, at least one, first those with evidence. If one is still too large, truncate its responses."""
    tokens = full.tokens
    if tokens is None:
        return full
    measured = {
        group: sum(values[siblings[0].start] is not None for values in tokens.evidence.values())
        for group, siblings in tokens.by_group.items()
    }
    order = sorted(tokens.by_group, key=lambda group: (-measured[group], group))
    kept = full
    while kept.size > part and kept.prompts > 1:
        count = max(1, min(kept.prompts * 9 // 10, kept.prompts * part // kept.size))
        kept = _Blocks(tokens, full.about, page_json(token_block(tokens, order[:count])), count)
    longest = max((response.stop - response.start for response in tokens.responses), default=0)
    while kept.size > part and longest > 1:
        longest //= 2
        kept = kept._replace(block=page_json(token_block(tokens, order[: kept.prompts], longest=longest)))
    return kept


def _about(run: Run, step: int, tokens: StepTokens | None) -> dict[str, Any]:
    found = run.findings(step) if step in run.finding_steps else {}
    return {
        "findings": sanitize_values(_rounded_in(found.get("findings", []))),
        "rollouts": number(found.get("rollouts_used")),
        "method": sanitize_values(found.get("method")),
        "looked_at": _coverage(found.get("looked_at")),
        "plan": plan_grid(run, tokens) if tokens is not None else None,
    }


def _coverage(value: Any) -> dict[str, float] | None:
    """The number of prompts with predictions, and of all prompts; None if not recorded."""
    counts = {key: number(value.get(key)) for key in ("groups", "of")} if isinstance(value, dict) else {}
    known = {key: count for key, count in counts.items() if count is not None}
    return known if len(known) == 2 else None


def _rounded_in(value: Any) -> Any:
    if isinstance(value, float):
        return rounded(value, OF_FINDINGS)
    if isinstance(value, dict):
        return {key: _rounded_in(inner) for key, inner in value.items()}
    return [_rounded_in(inner) for inner in value] if isinstance(value, list) else value


def trends(run: Run) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Finding -> number -> (step, value) over all steps, also those that are not on the page."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for step in run.finding_steps:
        for finding in run.findings(step).get("findings", []):
            for name, value in finding.get("numbers", {}).items():
                if (short := rounded(number(value), OF_FINDINGS)) is not None:
                    found.setdefault(str(finding["name"]), {}).setdefault(name, []).append((step, short))
    return found
