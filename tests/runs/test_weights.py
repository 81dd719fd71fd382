"""Weights kept in bfloat16: our AdamW is torch's, small updates survive stochastic rounding alone, and a resume rounds alike."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import Parameter

from engine.runs import files_of, newest, run, same_weights, small_config, trainer_of
from fault.interrupting import interrupted_at
from tiny import made_up_rollouts, tiny_policy
from tokencredit.analysis.replay import recreate
from tokencredit.commands.flags import parse_train
from tokencredit.config.resolve import resolve
from tokencredit.errors import ConfigError
from tokencredit.forward.padded import score_rows
from tokencredit.optim.optimizer import StochasticAdamW, make_optimizer
from tokencredit.policy.policy import load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample
from tokencredit.storage.run_dir import RunDir
from tokencredit.trainer.loop import step_once

KNOBS: dict[str, Any] = {"lr": 3e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}
IN_BFLOAT16: dict[str, Any] = {"dtype": "bfloat16", "diagnose": {"every": 0}}


def gradients(shape: tuple[int, ...], steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(steps)]


def after(optimizer: torch.optim.Optimizer, parameter: Parameter, given: list[torch.Tensor]) -> torch.Tensor:
    for gradient in given:
        parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()
    return parameter.detach().clone()


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-14)], ids=str)
def test_without_rounding_it_is_torch_s_adamw(dtype: torch.dtype, close: float) -> None:
    start = torch.randn(40, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    ours, theirs = Parameter(start.clone()), Parameter(start.clone())
    given = gradients((40, 30), 7)
    found = after(StochasticAdamW([ours], seed=0, **KNOBS), ours, given)
    wanted = after(torch.optim.AdamW([theirs], **KNOBS), theirs, given)
    assert float((wanted - start).abs().mean()) > 1e-3
    torch.testing.assert_close(found, wanted, atol=close, rtol=0)


def test_a_parameter_taken_in_slices_moves_as_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given = gradients((7, 5), 3)
    found = []
    for at_once in (2**24, 10):
        monkeypatch.setattr("tokencredit.optim.optimizer.CHUNK_NUMBERS", at_once)
        parameter = Parameter(torch.linspace(-1, 1, 35).reshape(7, 5))
        found.append(after(StochasticAdamW([parameter], seed=0, **KNOBS), parameter, given))
    assert torch.equal(*found)
    alone = Parameter(torch.tensor(1.0))
    assert float(after(StochasticAdamW([alone], seed=0, lr=0.5, weight_decay=0.0), alone, [torch.tensor(2.0)])) == pytest.approx(0.5)


def test_one_step_from_bfloat16_weights_is_torch_s_in_float32_up_to_a_neighbour() -> None:
    start = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)).bfloat16()
    ours, theirs = Parameter(start.clone()), Parameter(start.float())
    given = [gradient.bfloat16() for gradient in gradients((40, 30), 1)]
    found = after(StochasticAdamW([ours], seed=0, **KNOBS), ours, given)
    wanted = after(torch.optim.AdamW([theirs], **KNOBS), theirs, given)
    apart = (found.float().view(torch.int32).long() - wanted.view(torch.int32).long()).abs()
    assert int(apart.max()) < 2**16
    assert not torch.equal(found, wanted.bfloat16())


def test_updates_that_nearest_rounding_forgets_are_kept_in_the_mean() -> None:
    """Steps of a millionth of the weights; a bfloat16 below 1 has its neighbour 1/256 away."""
    steps, rate, count = 10, 1e-6, 400_000
    given = [torch.ones(count)] * steps
    knobs: dict[str, Any] = {"lr": rate, "betas": (0.9, 0.95), "weight_decay": 0.0}
    suggest, chance = (Parameter(torch.ones(count, dtype=torch.bfloat16)) for _ in range(2))
    assert torch.equal(after(torch.optim.AdamW([suggest], **knobs), suggest, given), torch.ones(count, dtype=torch.bfloat16))
    moved = 1 - after(StochasticAdamW([chance], seed=3, **knobs), chance, given).double()
    expected = steps * rate
    error = (expected / 256 / count) ** 0.5
    assert abs(float(moved.mean()) - expected) < 5 * error
    assert expected > 20 * error


def test_chance_follows_from_seed_step_and_place_and_from_nothing_else() -> None:
    start, given = torch.ones(1_000, dtype=torch.bfloat16), [torch.ones(1_000)]

    def moved(seed: int, given: list[torch.Tensor] = given) -> torch.Tensor:
        parameter = Parameter(start.clone())
        return after(StochasticAdamW([parameter], seed=seed, lr=1e-3), parameter, given)

    before = torch.get_rng_state()
    assert torch.equal(moved(1), moved(1))
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(moved(1), moved(2))
    one, two = (Parameter(start.clone()) for _ in range(2))
    optimizer = StochasticAdamW([one, two], seed=1, lr=1e-3)
    one.grad = two.grad = torch.ones_like(start)
    optimizer.step()
    assert torch.equal(one, moved(1))
    assert not torch.equal(one, two)
    first = one.detach().clone()
    with torch.no_grad():
        one.copy_(start)
    optimizer.step()
    assert not torch.equal(one, first)


def test_moments_stay_in_float32_through_a_checkpoint() -> None:
    """In bfloat16, as torch would load them, the next step would be another one."""
    start, given = torch.randn(500, generator=torch.Generator().manual_seed(0)).bfloat16(), gradients((500,), 4)
    whole = Parameter(start.clone())
    wanted = after(StochasticAdamW([whole], seed=1, **KNOBS), whole, given)
    first = Parameter(start.clone())
    stopped = StochasticAdamW([first], seed=1, **KNOBS)
    after(stopped, first, given[:2])
    second = Parameter(first.detach().clone())
    resumed = StochasticAdamW([second], seed=1, **KNOBS)
    resumed.load_state_dict(stopped.state_dict())
    assert resumed.state[second]["exp_avg"].dtype == torch.float32
    assert torch.equal(after(resumed, second, given[2:]), wanted)


@pytest.mark.parametrize("weights", ["bfloat16", "bfloat16-stochastic"])
def test_a_run_stopped_inside_a_batch_ends_with_the_same_bits(tmp_path: Path, weights: str) -> None:
    config = small_config(steps=3, weights=weights, **IN_BFLOAT16)
    owner = StochasticAdamW if weights == "bfloat16-stochastic" else torch.optim.AdamW
    run(config, tmp_path / "whole")
    assert interrupted_at(owner, "step", 3, config, tmp_path / "cut").name == "step-000001-1"
    run(config, tmp_path / "cut", resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "cut")


def test_weights_of_a_checkpoint_are_the_live_ones_in_bfloat16_with_moments_as_told(tmp_path: Path) -> None:
    for weights, moments in (("bfloat16", torch.bfloat16), ("bfloat16-stochastic", torch.float32), ("float32", torch.float32)):
        outcome = run(small_config(steps=1, weights=weights, **IN_BFLOAT16), tmp_path / weights)
        stored = load_file(newest(tmp_path / weights) / "model.safetensors")
        assert {value.dtype for value in stored.values()} == {torch.float32 if weights == "float32" else torch.bfloat16}
        live = outcome.policy.model.state_dict()
        assert all(torch.equal(value, live[name]) for name, value in stored.items())
        optimizer = load_file(newest(tmp_path / weights) / "optimizer.safetensors")
        assert {value.dtype for name, value in optimizer.items() if not name.endswith("step")} == {moments}
    assert not same_weights(tmp_path / "bfloat16", tmp_path / "bfloat16-stochastic")


def test_at_a_small_rate_only_chance_moves_as_many_weights_as_it_should() -> None:
    """At 1e-5 the first optimizer step of a real batch changes next to no weight that is rounded to nearest."""
    from tokencredit.pipeline.credit import MethodState

    changed: dict[str, float] = {}
    drift: dict[str, float] = {}
    for weights in ("float32", "bfloat16", "bfloat16-stochastic"):
        optimizer = {"steps_per_batch": 1, "learning_rate": 1e-5, "warmup_steps": 0}
        trainer = trainer_of(small_config(weights=weights, optimizer=optimizer, **IN_BFLOAT16))
        matrix = trainer.policy.model.model.layers[0].mlp.up_proj.weight
        before = matrix.detach().float().clone()
        assert step_once(trainer, 0, MethodState()) is not None
        moved = matrix.detach().float() - before
        changed[weights] = float((moved != 0).float().mean())
        drift[weights] = float(moved.abs().mean())
    assert changed["bfloat16"] < 0.3 * changed["float32"]
    # Where a weight moves at all it moves to a neighbour; over many the sizes agree.
    assert drift["bfloat16-stochastic"] == pytest.approx(drift["float32"], rel=0.2)


def test_log_probs_of_bfloat16_weights_are_float32() -> None:
    policy = load_policy("steps-shift", device=torch.device("cpu"), dtype="bfloat16", weights="bfloat16")
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.bfloat16}
    sampled = sample(
        policy, [policy.encode("1+2=")], SamplingParams(group_size=2, max_new_tokens=5, seed=0, keep_hidden=True, dtype="bfloat16")
    )
    scored = score_rows(policy.model, sampled.rollouts, temperature=1.0, max_tokens=100, keep_hidden=True, dtype="bfloat16")
    for evidence in (sampled.evidence, scored):
        assert evidence.hidden is not None
        assert {evidence.logp.dtype, evidence.entropy.dtype, evidence.hidden.dtype} == {torch.float32}
    values = score_rows(tiny_policy(torch.bfloat16).model, made_up_rollouts(), temperature=1.0, max_tokens=100).logp
    assert not torch.equal(values, values.bfloat16().float())


@pytest.mark.parametrize("weights", ["bfloat16", "bfloat16-stochastic"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "float64"}, r"weights is 'bfloat16.*' but dtype is 'float64'"),
        ({"dtype": "float32"}, r"weights is 'bfloat16.*' but dtype is 'float32'"),
        ({"diagnose": {"every": 3}}, r"diagnose.every is 3, .* set diagnose.every to 0"),
    ],
)
def test_what_bfloat16_weights_cannot_do_is_refused(weights: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve([{"weights": weights}, IN_BFLOAT16, changes])


def test_what_bfloat16_weights_need_comes_with_them() -> None:
    config = resolve([{"weights": "bfloat16-stochastic"}])
    assert (config.dtype, config.diagnose.every) == ("bfloat16", 0)
    assert (resolve([]).dtype, resolve([]).diagnose.every) == ("float32", 20)
    asked = parse_train(["--weights", "bfloat16", "--seed", "1"]).config
    assert (asked.weights, asked.dtype, asked.diagnose.every) == ("bfloat16", "bfloat16", 0)
    with pytest.raises(ConfigError, match=r"diagnose\.every is 3"):
        parse_train(["--weights", "bfloat16", "--diagnose.every", "3"])


def test_chance_has_nothing_to_round_beside_adapters() -> None:
    with pytest.raises(ConfigError, match=r"lora.rank is 2, and adapters are kept in float32"):
        resolve([{"weights": "bfloat16-stochastic", "lora": {"rank": 2}}, IN_BFLOAT16])


def test_an_update_of_bfloat16_weights_cannot_be_looked_at_later_either(tmp_path: Path) -> None:
    config = small_config(steps=1, weights="bfloat16", **IN_BFLOAT16)
    run(config, tmp_path / "run")
    with pytest.raises(ConfigError, match="only updates of float32 weights can be observed"):
        recreate(RunDir(tmp_path / "run"), config, 1)


def test_the_optimizer_is_torch_s_unless_chance_is_asked_for() -> None:
    kinds = {
        weights: type(make_optimizer(resolve([{"weights": weights}, IN_BFLOAT16]), tiny_policy().model))
        for weights in ("float32", "bfloat16", "bfloat16-stochastic")
    }
    assert kinds == {"float32": torch.optim.AdamW, "bfloat16": torch.optim.AdamW, "bfloat16-stochastic": StochasticAdamW}
