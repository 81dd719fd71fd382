"""Part `head`: log-prob and entropy of given tokens from hidden states and the head's weight, ours compared with TRL's and Liger's."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokencredit.kernels import token_statistics
from tokencredit.lab.speed.timing import Call, allocated, enough_calls, free, in_turns, peak_bytes, ratios, spread
from tokencredit.lab.speed.trl_loss import load_trl, why_no_trl
from tokencredit.lab.speed.workload import Bench, Result, Shown, gib, ms, percent, times

Score = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(hidden, weight, tokens) to log-probs; also computes the entropy if the implementation supports it."""


class Case(NamedTuple):
    tokens: int
    width: int
    vocab: int

    def floor_work(self, *, backward: bool, element: int) -> tuple[float, float]:
        """FLOPs and bytes at least: one product, or three with the backward; each matrix read once, each gradient written once."""
        flops = (6.0 if backward else 2.0) * self.tokens * self.width * self.vocab
        return flops, float((2 if backward else 1) * element * self.width * (self.tokens + self.vocab))


def cases(bench: Bench) -> list[Case]:
    if bench.small:
        return [Case(48, 32, 512), Case(48, 32, 1000)]
    return [Case(16_384, 896, vocab) for vocab in (32_000, 49_152, 128_256, 151_936)]


def naive(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """Materializes all logits, as the model's forward does."""
    return token_statistics(torch.nn.functional.linear(hidden, weight), tokens, temperature=1.0).logp


def ours(backend: str) -> Score:
    from tokencredit.kernels.lm_head import HeadRule, head_statistics

    named: Any = backend
    return lambda hidden, weight, tokens: head_statistics(hidden, weight, tokens, HeadRule(), backend=named).logp


def trl_chunked() -> Score:
    load_trl()
    chunked = importlib.import_module("trl.kernels.chunked_logprob").ChunkedLogProbFunction
    chunk = getattr(importlib.import_module("trl.trainer.utils"), "_CHUNKED_LOGPROB_CHUNK_SIZE", 32_768)
    return lambda hidden, weight, tokens: chunked.apply(hidden, weight, None, tokens, 1.0, chunk, None, 1.0, ("entropy",))[0]


def trl_selective() -> Score:
    """TRL's kernel over materialized logits."""
    load_trl()
    both = importlib.import_module("trl.trainer.utils").selective_log_softmax_and_entropy
    return lambda hidden, weight, tokens: both(torch.nn.functional.linear(hidden, weight), tokens, entropy_requires_grad=False)[0]


def liger_cross_entropy() -> Score:
    """Log-probs without entropy. Its backward recomputes the logits, as ours does."""
    loss = importlib.import_module("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss(
        reduction="none", accum_dtype=torch.float32
    )
    return lambda hidden, weight, tokens: -loss(weight, hidden, tokens)


def liger_grpo(case: Case) -> Score:
    """The GRPO loss with its gradient; it returns no log-probs. Responses have 512 tokens."""
    loss = importlib.import_module("liger_kernel.chunked_loss").LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False)
    rows = max(1, case.tokens // 512)

    def score(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
        mask = torch.ones(rows, case.tokens // rows, device=hidden.device)
        advantage = torch.ones(rows, device=hidden.device)
        return loss(hidden.view(rows, -1, case.width), weight, tokens.view(rows, -1), mask, advantage)[0]

    return score


class Implementation(NamedTuple):
    make: Callable[[], Score]
    why_not: str | None = None
    gives_logp: bool = True


def implementations(bench: Bench, case: Case) -> dict[str, Implementation]:
    no_gpu = "needs a GPU" if bench.small else None
    no_liger = no_gpu or (None if importlib.util.find_spec("liger_kernel") else "liger-kernel is not installed")
    found = {
        "naive": Implementation(lambda: naive),
        "ours chunked": Implementation(lambda: ours("chunked")),
        "ours fused": Implementation(lambda: ours("triton"), no_gpu),
        "trl chunked": Implementation(trl_chunked, why_no_trl()),
        "trl selective": Implementation(trl_selective, why_no_trl()),
        "liger cross entropy": Implementation(liger_cross_entropy, no_liger),
    }
    if case.vocab == cases(bench)[-1].vocab:
        # It recompiles for every vocabulary, which is slow: only the largest is measured.
        found["liger grpo"] = Implementation(lambda: liger_grpo(case), no_liger, gives_logp=False)
    return found


class _Given:
    def __init__(self, bench: Bench, case: Case) -> None:
        generator = torch.Generator(device=bench.device).manual_seed(bench.seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=bench.device)

        self.hidden = random(case.tokens, case.width).to(bench.torch_dtype).requires_grad_()
        self.weight = (random(case.vocab, case.width) * 0.05).to(bench.torch_dtype).requires_grad_()
        self.tokens = torch.randint(case.vocab, (case.tokens,), generator=generator, device=bench.device)
        self.kappa = random(case.tokens) / case.tokens

    def forward(self, score: Score) -> Tensor:
        with torch.no_grad():
            return score(self.hidden, self.weight, self.tokens)

    def both(self, score: Score) -> None:
        self.hidden.grad = self.weight.grad = None
        found = score(self.hidden, self.weight, self.tokens)
        found.backward(self.kappa.to(found.dtype) if found.dim() else None)

    def call(self, score: Score, *, backward: bool) -> Call:
        return (lambda: self.both(score)) if backward else (lambda: self.forward(score))

    def gradients(self, score: Score) -> list[Tensor]:
        self.both(score)
        assert self.hidden.grad is not None
        assert self.weight.grad is not None
        return [self.hidden.grad.float(), self.weight.grad.float()]


def _error(given: _Given, score: Score, right: Tensor, gradients: list[Tensor]) -> dict[str, float]:
    """Largest log-prob difference to the naive one, and the relative gradient error."""
    found = given.gradients(score)
    off = [float((mine - theirs).norm() / theirs.norm()) for mine, theirs in zip(found, gradients, strict=True)]
    return {"logp": float((given.forward(score) - right).abs().max()), "hidden_gradient": off[0], "weight_gradient": off[1]}


def measure_case(bench: Bench, case: Case) -> Result:
    bench.report(f"head: {case.tokens} tokens, width {case.width}, vocabulary {case.vocab}")
    given = _Given(bench, case)
    scores: dict[str, Score] = {}
    rows: dict[str, Any] = {}
    floors: dict[str, float] = {}
    able_to = implementations(bench, case)
    right, gradients = given.forward(naive), given.gradients(naive)
    for name, implementation in able_to.items():
        rows[name] = {"why_not": implementation.why_not}
        if implementation.why_not is not None:
            continue
        try:
            score = implementation.make()
            given.both(score)
            rows[name]["apart_from_naive"] = _error(given, score, right, gradients) if implementation.gives_logp else None
        except Exception as problem:  # a third-party kernel may fail in any way; the others are still measured
            rows[name]["why_not"] = f"{type(problem).__name__}: {str(problem).splitlines()[0][:200] if str(problem) else ''}"
            bench.report(f"  {name}: {rows[name]['why_not']}")
            continue
        scores[name] = score
    del right, gradients
    element = given.hidden.element_size()
    for way, backward in (("forward", False), ("forward_backward", True)):
        able = {name: score for name, score in scores.items() if backward or able_to[name].gives_logp}
        calls = {name: given.call(score, backward=backward) for name, score in able.items()}
        often = min(enough_calls(call, bench.device) for call in calls.values())
        taken = in_turns(calls, bench.device, repeats=bench.repeats, calls=often)
        flops, moved = case.floor_work(backward=backward, element=element)
        floor = bench.ceilings.floor(flops=flops, moved=moved)
        for name, values in taken.items():
            given.hidden.grad = given.weight.grad = None
            free(bench.device)
            rows[name][way] = {
                "seconds": spread(values),
                "share_of_floor": spread([floor / value for value in values]),
                "peak_bytes": peak_bytes(calls[name], bench.device, before=allocated(bench.device)),
                "naive_over_it": ratios(taken["naive"], values),
            }
        floors[way] = floor
    return {"case": case._asdict(), "floor_seconds": floors, "contenders": rows}


def measure(bench: Bench) -> Result:
    found = []
    for case in cases(bench):
        found.append(measure_case(bench, case))
        free(bench.device)
    return {
        "what": "log-prob and entropy of given tokens from hidden states and the head's weight",
        "floor": "larger of FLOPs / peak and bytes / bandwidth; 2 x tokens x width x vocabulary FLOPs forward, 6 with the backward; "
        "hidden states and weight read once, their gradients written once",
        "cases": found,
    }


def show(result: Result) -> list[Shown]:
    tables = []
    for found in result["cases"]:
        case, rows, notes = found["case"], [], []
        for name, row in found["contenders"].items():
            if row["why_not"]:
                notes.append(f"{name} is left out: {row['why_not']}")
                continue
            cells: list[str] = []
            for way in ("forward", "forward_backward"):
                part = row.get(way)
                none = ("-", "-", "-", "-")
                cells += (
                    none
                    if part is None
                    else (
                        ms(part["seconds"]["median"]),
                        percent(part["share_of_floor"]["median"]),
                        gib(part["peak_bytes"]),
                        times(part["naive_over_it"]),
                    )
                )
            rows.append((name, *cells))
        ways = tuple(f"{what}{way}" for way in ("", " + backward") for what in ("forward", "of floor", "peak", "naive takes"))
        tables.append(
            Shown(f"head: {case['tokens']:,} tokens, width {case['width']}, vocabulary {case['vocab']:,}", ("", *ways), rows, tuple(notes))
        )
    return tables
