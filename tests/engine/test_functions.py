"""The functions for SkyRL, prime-rl and slime: called as those engines call them, equal to the stages called directly.

None of the engines is here. What they do around a hook (scaling advantages, dividing, cutting into micro-batches and ranks)
is written out again in plain loops, and the sum over all calls must be the step's loss and its gradient.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tokencredit.advantage import AdvantageInputs
from tokencredit.batching.microbatch import step_denominator
from tokencredit.config import Recipe
from tokencredit.config.resolve import RecipeSource, read_recipe
from tokencredit.credit import CreditInputs
from tokencredit.errors import ConfigError, GuardError
from tokencredit.integrations.hooks import (
    prime_rl_custom_loss,
    prime_rl_loss,
    skyrl_advantage,
    skyrl_policy_loss,
    slime_advantage,
    slime_custom_advantage,
    slime_custom_loss,
    slime_loss,
    slime_reward_post_process,
    slime_rewards,
)
from tokencredit.masked import masked_sum
from tokencredit.objective import OBJECTIVES, TokenInputs, token_weight
from tokencredit.pipeline.build import build_advantage, build_correction, build_credit, build_objective, build_shape
from tokencredit.shape import ShapeInputs

NAN = float("nan")
LIMIT = 7
"""Length limit of a response, one above the longest."""
VOCABULARY = 5


class Batch(NamedTuple):
    """Three prompts: one with an ungraded response, one whose responses are all wrong; a hole in a mask, a response without tokens."""

    score: Tensor
    group: Tensor
    length: Tensor
    mask: Tensor
    tokens: Tensor
    old_logp: Tensor
    logp: Tensor
    sampler_logp: Tensor


def made_up_batch() -> Batch:
    generator = torch.Generator().manual_seed(3)
    length = torch.tensor([5, 3, 4, 2, 6, 1, 3, 4])
    mask = torch.arange(6) < length[:, None]
    mask[1, 1] = False
    mask[5] = False
    old_logp = -3 * torch.rand(8, 6, generator=generator, dtype=torch.float64)

    def near(spread: float) -> Tensor:
        return (old_logp + spread * torch.randn(8, 6, generator=generator, dtype=torch.float64)).clamp(max=0)

    return Batch(
        score=torch.tensor([1.0, 0.0, NAN, 1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64),
        group=torch.tensor([0, 0, 0, 1, 1, 1, 2, 2]),
        length=length,
        mask=mask,
        tokens=torch.randint(VOCABULARY, (8, 6), generator=generator),
        old_logp=old_logp,
        logp=near(0.4),
        sampler_logp=near(0.6),
    )


BATCH = made_up_batch()


def staged_advantage(recipe: Recipe, batch: Batch) -> Tensor:
    length = batch.mask.sum(-1)
    reward = batch.score + build_shape(recipe).adjust(ShapeInputs(batch.score, length, LIMIT))
    compared = build_advantage(recipe)(AdvantageInputs(reward, batch.group, length=length, score=batch.score), {})
    return compared.advantage.where(~batch.score.isnan(), 0.0)


def staged_loss(source: RecipeSource, batch: Batch, advantage: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Value and gradient by log-prob of one optimizer step that holds the whole batch."""
    recipe = read_recipe(source)
    built, correct = build_objective(recipe, max_length=LIMIT), build_correction(recipe)
    mask = batch.mask & ~batch.sampler_logp.isnan()
    advantage = staged_advantage(recipe, batch) if advantage is None else advantage
    rows = CreditInputs(advantage, mask, batch.group, batch.tokens, batch.old_logp, torch.full_like(batch.old_logp, NAN), seed=0)
    logp = batch.logp.clone().requires_grad_()
    inputs = TokenInputs(
        logp=logp,
        old_logp=batch.old_logp,
        credit=build_credit(recipe).assign(rows, {}).credit,
        mask=mask,
        group=batch.group,
        correction=None if correct is None else correct(batch.old_logp, batch.sampler_logp, mask),
    )
    lengths = mask.sum(-1)
    weight = token_weight(mask, lengths.to(logp.dtype), aggregation=built.aggregation)
    divisor = step_denominator(lengths.tolist(), aggregation=built.aggregation, constant_length=built.constant_length)
    loss = masked_sum(weight * built.objective.token_loss(inputs, None), mask) / divisor
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


def same(one: Tensor, two: Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9, check_dtype=False)


# SkyRL

NAMED = {"advantage_estimator": "tokencredit", "policy_loss_type": "tokencredit"}


def skyrl_config(**changed: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **({**NAMED, "loss_reduction": "token_mean", "max_seq_len": LIMIT, "advantage_batch_normalize": False} | changed)
    )


def pushed_right(value: Tensor, fill: float = 0.0) -> Tensor:
    """SkyRL fills up responses on their left."""
    moved = torch.full_like(value, fill)
    for row, length in enumerate(BATCH.length.tolist()):
        moved[row, 6 - length :] = value[row, :length]
    return moved


def pushed_left(value: Tensor) -> Tensor:
    moved = torch.zeros_like(value)
    for row, length in enumerate(BATCH.length.tolist()):
        moved[row, :length] = value[row, 6 - length :]
    return moved


def skyrl_estimate(recipe: RecipeSource, batch: Batch, *, padding: int = 0, **options: Any) -> Tensor:
    """As compute_advantages_and_returns calls an estimator: rewards on the last token, uids as strings, copies of row 0 at the end."""
    rewards = torch.zeros_like(batch.old_logp)
    rewards[:, -1] = batch.score
    rows = [*range(len(rewards)), *[0] * padding]
    names = [f"uid-{group}" for group in batch.group.tolist()] + [f"pad{number}" for number in range(padding)]
    advantages, returns = skyrl_advantage(recipe, max_new_tokens=LIMIT)(
        token_level_rewards=rewards[rows],
        response_mask=pushed_right(batch.mask)[rows].long(),
        index=names,
        values=None,
        grpo_norm_by_std=True,
        gamma=1.0,
        lambd=1.0,
        config=skyrl_config(**options),
    )
    assert torch.equal(advantages, returns)
    return advantages


def skyrl_reduced(advantages: Tensor, mask: Tensor, reduction: str) -> Tensor:
    """What SkyRL divides the advantages of a mini-batch by, so that its losses need only sum."""
    if reduction == "token_mean":
        return advantages / mask.sum()
    if reduction == "sequence_mean":
        return advantages / (len(mask) * mask.sum(-1, keepdim=True).clamp(min=1))
    return advantages / (len(mask) * LIMIT)


REDUCTIONS = {"token-mean": "token_mean", "sequence-mean": "sequence_mean", "constant": "seq_mean_token_sum_norm"}


def skyrl_step(source: RecipeSource, batch: Batch, *, sampler: bool = False) -> tuple[Tensor, Tensor]:
    recipe = read_recipe(source)
    reduction = REDUCTIONS[recipe.objective.aggregation]
    mask = pushed_right(batch.mask.double())
    advantages = skyrl_reduced(skyrl_estimate(recipe, batch), mask, reduction)
    policy_loss = skyrl_policy_loss(recipe, max_new_tokens=LIMIT)
    # Whatever a model says of positions that are no part of a response must not matter.
    logp = pushed_right(batch.logp, fill=NAN).requires_grad_()
    old_logp, sampler_logp = pushed_right(batch.old_logp, fill=NAN), pushed_right(batch.sampler_logp)
    loss = torch.zeros((), dtype=torch.float64)
    for rows in (slice(0, 3), slice(3, 5), slice(5, 8)):
        share, metrics = policy_loss(
            logp[rows],
            old_logp[rows],
            advantages[rows],
            config=skyrl_config(loss_reduction=reduction),
            loss_mask=mask[rows],
            rollout_logprobs=sampler_logp[rows] if sampler else None,
        )
        assert 0 <= metrics["clip_ratio"] <= 1
        loss = loss + share
    return loss.detach(), pushed_left(torch.autograd.grad(loss, logp)[0])


TWO_RECIPES = ("dr-grpo", "positive-only")
"""What a hook does with a recipe: a constant divisor and credit that passes; a shaped reward, a mean over tokens and credit per token.
Means over responses, corrections and credit by rank are met below. What the stages themselves compute has its own tests."""


@pytest.mark.parametrize("name", TWO_RECIPES)
def test_skyrl_mini_batch_is_the_step_of_the_recipe(name: str) -> None:
    loss, gradient = skyrl_step(name, BATCH)
    expected, expected_gradient = staged_loss(name, BATCH)
    assert expected_gradient.abs().max() > 1e-3
    same(loss, expected)
    same(gradient, expected_gradient)


def test_skyrl_advantages_by_hand() -> None:
    found = skyrl_estimate("grpo", BATCH, padding=2)
    graded = 0.5 / (0.5**0.5 + 1e-6)
    of_response = torch.tensor([graded, -graded, 0.0, 2 / 3 / (3**-0.5 + 1e-6), -1 / 3 / (3**-0.5 + 1e-6), 0.0, 0.0, 0.0, 0.0, 0.0])
    mask = pushed_right(BATCH.mask)[[*range(8), 0, 0]]
    same(found, of_response[:, None].double() * mask)


def test_an_ungraded_response_has_no_advantage_whatever_a_preset_makes_of_it() -> None:
    found = skyrl_estimate({"recipe": "grpo", "advantage": {"preset": "verl"}}, BATCH)
    assert found[1].any()
    assert not found[2].any()


@pytest.mark.parametrize("name", ["reinforce++", "gpg", "c-rf"])
def test_skyrl_padding_takes_no_part_in_a_comparison(name: str) -> None:
    alone, padded = skyrl_estimate(name, BATCH), skyrl_estimate(name, BATCH, padding=3)
    assert torch.equal(padded[:8], alone)
    assert not padded[8:].any()


def test_skyrl_loss_by_hand() -> None:
    """Ratios 2, 0.5 and 1.1; clipped at 1.2 for the rewarded token, at 0.8 for the punished one."""
    loss, metrics = skyrl_policy_loss({"recipe": "cispo", "objective": {"type": "ppo-clip", "aggregation": "token-mean"}})(
        torch.tensor([[2.0, 0.5, 1.1, 9.0]]).log(),
        torch.zeros(1, 4),
        torch.tensor([[1.0, -2.0, 3.0, 5.0]]),
        skyrl_config(),
        loss_mask=torch.tensor([[1.0, 1.0, 1.0, 0.0]]),
    )
    assert float(loss) == pytest.approx(-(1.2 - 1.6 + 3.3))
    assert metrics == {"clip_ratio": pytest.approx(2 / 3)}


def test_skyrl_tokens_without_a_mask_all_count() -> None:
    loss, _ = skyrl_policy_loss("gpg")(torch.tensor([[-1.0, -2.0]]), torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]), skyrl_config())
    assert float(loss) == pytest.approx(1 + 6)


TIS = {"recipe": "cispo", "correction": {"kind": "tis", "cap": 1.5}}
MIS = {"recipe": "grpo", "correction": {"kind": "mis", "level": "sequence", "cap": 1.4, "floor": 0.5}}


@pytest.mark.parametrize("recipe", [TIS, MIS])
def test_skyrl_corrects_for_the_sampler(recipe: RecipeSource) -> None:
    loss, gradient = skyrl_step(recipe, BATCH, sampler=True)
    expected, expected_gradient = staged_loss(recipe, BATCH)
    same(loss, expected)
    same(gradient, expected_gradient)
    assert not torch.allclose(gradient, staged_loss({**recipe, "correction": {"kind": "none"}}, BATCH)[1])


def test_skyrl_token_that_the_sampler_could_not_score_leaves_the_loss() -> None:
    unscored = BATCH.sampler_logp.clone()
    unscored[0, 1] = NAN
    gradient = skyrl_step("cispo", BATCH._replace(sampler_logp=unscored), sampler=True)[1]
    whole = skyrl_step("cispo", BATCH, sampler=True)[1]
    assert whole[0, 1] != 0
    assert gradient[0, 1] == 0
    whole[0, 1] = 0
    same(gradient, whole)


def test_skyrl_needs_sampler_log_probs_to_correct() -> None:
    with pytest.raises(ConfigError, match=r"correction\.kind is 'tis' but SkyRL gave no rollout_logprobs"):
        skyrl_step(TIS, BATCH)


@pytest.mark.parametrize("objective", [name for name, make in OBJECTIVES.items() if make().statistic is None])
def test_what_skyrl_relies_on_objectives_are_proportional_to_credit(objective: str) -> None:
    """Token by token, since `sequence_mean` scales every response differently."""
    scale = torch.rand(8, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    credit = torch.linspace(-2, 2, 48, dtype=torch.float64).view(8, 6).where(BATCH.mask, 0.0)
    inputs = TokenInputs(BATCH.logp, BATCH.old_logp, credit, BATCH.mask, BATCH.group)
    token_loss = OBJECTIVES[objective]().token_loss
    same(token_loss(inputs._replace(credit=scale * credit), None), scale * token_loss(inputs, None))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"policy_loss_type": "gspo"}, "under one name"),
        ({"advantage_estimator": "grpo"}, "under one name"),
        ({"loss_reduction": "prompt_mean"}, "set it to 'token_mean'"),
        ({"loss_reduction": "sequence_mean"}, "set it to 'token_mean'"),
        ({"off_policy_correction": SimpleNamespace(tis_ratio_type="token")}, "use the recipe's correction"),
    ],
)
def test_skyrl_loss_refuses_settings_that_contradict_it(changed: dict[str, Any], said: str) -> None:
    one = torch.zeros(1, 1)
    with pytest.raises(ConfigError, match=said):
        skyrl_policy_loss("cispo")(one, one, one, skyrl_config(**changed))


def test_skyrl_divides_by_the_recipes_constant_only() -> None:
    one = torch.zeros(1, 1)
    config = skyrl_config(loss_reduction="seq_mean_token_sum_norm", max_seq_len=8)
    skyrl_policy_loss({"recipe": "dr-grpo", "objective": {"constant_length": 8}}, max_new_tokens=LIMIT)(one, one, one, config)
    with pytest.raises(ConfigError, match="max_seq_len, which SkyRL divides by, is 8; set it to the recipe's 7"):
        skyrl_policy_loss("dr-grpo", max_new_tokens=LIMIT)(one, one, one, config)
    with pytest.raises(ConfigError, match="length is not known"):
        skyrl_policy_loss("dr-grpo")


def test_skyrl_estimator_refuses_settings_that_contradict_it() -> None:
    with pytest.raises(ConfigError, match="under one name"):
        skyrl_estimate("grpo", BATCH, policy_loss_type="regular")
    with pytest.raises(ConfigError, match="advantage_batch_normalize"):
        skyrl_estimate("grpo", BATCH, advantage_batch_normalize=True)


def test_skyrl_overlong_penalty_needs_the_limit() -> None:
    with pytest.raises(ConfigError, match="give max_new_tokens"):
        skyrl_advantage("dapo")


def test_an_infinite_reward_stops_the_run() -> None:
    with pytest.raises(GuardError, match="1 of 8 rewards are infinite"):
        skyrl_estimate("grpo", BATCH._replace(score=BATCH.score.masked_fill(BATCH.score.isnan(), float("inf"))))


@pytest.mark.parametrize("field", ["logp", "old_logp"])
def test_a_broken_policy_stops_the_run(field: str) -> None:
    broken = getattr(BATCH, field).clone()
    broken[3, 1] = NAN
    with pytest.raises(GuardError, match="of 1 tokens of the loss are not finite"):
        skyrl_step("grpo", BATCH._replace(**{field: broken}))


# prime-rl


@dataclass
class LossInputs:
    """The fields prime-rl gives a loss."""

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = None
    trainer_mask_logprobs: Tensor | None = None
    inference_mask_logprobs: Tensor | None = None


def prime_rl_step(loss_of: Callable[[LossInputs], Any], batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One packed sequence after the other, a prompt of two tokens before each; advantages are reward minus the group's mean."""
    centred = staged_advantage(read_recipe("dr-grpo"), batch)
    logp = batch.logp.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    prompt = torch.full((2,), NAN, dtype=torch.float64)
    for row, length in enumerate(batch.length.tolist()):
        outcome = loss_of(
            LossInputs(
                trainer_logprobs=torch.cat([prompt, logp[row, :length]]),
                inference_logprobs=torch.cat([prompt, batch.old_logp[row, :length]]),
                ref_logprobs=None,
                advantages=torch.cat([torch.zeros(2), centred[row].expand(length)]),
                loss_mask=torch.cat([torch.zeros(2, dtype=torch.bool), batch.mask[row, :length]]),
                loss_weights=None if weights is None else torch.cat([torch.zeros(2), weights[row, :length]]),
            )
        )
        assert all(value.dim() == 0 for value in outcome.metrics.values())
        total = total + outcome.loss
    total = total / (batch.mask.sum() if weights is None else masked_sum(weights, batch.mask))
    return total.detach(), torch.autograd.grad(total, logp)[0]


def in_prime_rl(name: str, **changed: Any) -> dict[str, Any]:
    settled = {"shape": {"type": "none"}, "advantage": {"type": "dr-grpo"}, "objective": {"aggregation": "token-mean"}}
    return {"recipe": name, **settled, **changed}


@pytest.mark.parametrize("name", ["gspo", "negative-only"])
def test_prime_rl_step_is_the_step_of_the_recipe(name: str) -> None:
    recipe = in_prime_rl(name)
    loss, gradient = prime_rl_step(prime_rl_loss(recipe), BATCH)
    expected, expected_gradient = staged_loss(recipe, BATCH)
    assert expected_gradient.abs().max() > 1e-3
    same(loss, expected)
    same(gradient, expected_gradient)


def test_prime_rl_finds_the_recipe_in_the_kwargs_of_its_custom_loss() -> None:
    recipe = in_prime_rl("ntf")
    by_path = prime_rl_step(lambda inputs: prime_rl_custom_loss(inputs, recipe=recipe), BATCH)
    same(by_path[1], prime_rl_step(prime_rl_loss(recipe), BATCH)[1])
    other = prime_rl_step(lambda inputs: prime_rl_custom_loss(inputs, recipe=in_prime_rl("cispo")), BATCH)
    assert not torch.allclose(by_path[1], other[1])


def test_prime_rl_weights_scale_the_loss_of_a_token() -> None:
    weights = torch.linspace(0.5, 2, 48, dtype=torch.float64).view(8, 6)
    plain, weighted = (prime_rl_step(prime_rl_loss(in_prime_rl("cispo")), BATCH, given)[1] for given in (None, weights))
    same(weighted * masked_sum(weights, BATCH.mask), plain * weights * BATCH.mask.sum())


def test_prime_rl_token_that_the_sampler_could_not_score_leaves_the_loss() -> None:
    unscored = BATCH.old_logp.clone()
    unscored[3, 0] = NAN
    recipe = in_prime_rl("cispo")
    gradient = prime_rl_step(prime_rl_loss(recipe), BATCH._replace(old_logp=unscored))[1]
    whole = prime_rl_step(prime_rl_loss(recipe), BATCH)[1]
    assert whole[3, 0] != 0
    whole[3, 0] = 0
    same(gradient, whole)


def one_sequence(advantages: list[float]) -> LossInputs:
    logp = torch.log(torch.tensor([0.5, 0.2, 0.1]))
    return LossInputs(logp, logp, None, torch.tensor(advantages), torch.ones(3, dtype=torch.bool))


def test_credit_of_a_response_starts_from_one_advantage() -> None:
    different = one_sequence([-1.0, -1.0, 2.0])
    assert float(prime_rl_loss(in_prime_rl("grpo"))(different).loss) == pytest.approx(0.0)
    with pytest.raises(ConfigError, match="credit 'ntf' starts from one advantage per response"):
        prime_rl_loss(in_prime_rl("ntf"))(different)
    # ceil(0.1 x 3) = 1 token is penalised, at ratio 1.
    assert float(prime_rl_loss(in_prime_rl("ntf"))(one_sequence([-1.0] * 3)).loss) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("cispo", "advantage is 'grpo' but prime-rl assigns advantages"),
        ("dr-grpo", "aggregation is 'constant' but prime-rl divides by the tokens"),
        (in_prime_rl("gspo", objective={"aggregation": "sequence-mean"}), "aggregation is 'sequence-mean'"),
        (in_prime_rl("dapo", shape={"type": "overlong"}), "shape is 'overlong' but prime-rl compares rewards"),
        (in_prime_rl("grpo", correction={"kind": "tis"}), "ratios are those to the sampler already"),
        (in_prime_rl("grpo", batching={"type": "query-preserved"}), "use 'shuffled', or"),
    ],
)
def test_prime_rl_refuses_what_it_settles_itself(recipe: RecipeSource, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        prime_rl_loss(recipe)


# slime

RANKS = ((0, 3, 4, 7), (1, 2, 5, 6))
"""Every prompt's responses are spread over both, as its scheduler may do."""


def slime_args(recipe: RecipeSource = "grpo", **changed: Any) -> SimpleNamespace:
    settings = {
        "tokencredit_recipe": recipe,
        "custom_reward_post_process_path": "tokencredit.integrations.hooks.slime_reward_post_process",
        "custom_advantage_function_path": "tokencredit.integrations.hooks.slime_custom_advantage",
        "custom_loss_function_path": "tokencredit.integrations.hooks.slime_custom_loss",
        "loss_type": "custom_loss",
        "reward_key": None,
        "rollout_max_response_len": LIMIT,
        "use_rollout_logprobs": False,
        "calculate_per_token_loss": read_recipe(recipe).objective.aggregation == "token-mean",
        "normalize_advantages": False,
        "kl_coef": 0.0,
        "entropy_coef": 0.0,
        "use_kl_loss": False,
        "use_tis": False,
        "custom_pg_loss_reducer_function_path": None,
        "global_batch_size": 8,
        "n_samples_per_prompt": 4,
    }
    return SimpleNamespace(**(settings | changed))


@dataclass
class Sample:
    group_index: int | None
    rollout_id: int | None
    reward: float | None
    response_length: int
    loss_mask: list[int] | None
    remove_sample: bool = False

    def get_reward_value(self, args: Any) -> float | None:
        assert args.reward_key is None
        return self.reward


def slime_samples(batch: Batch) -> list[Sample]:
    score = [None if value != value else value for value in batch.score.tolist()]
    return [
        Sample(group, row, score[row], length, batch.mask[row, :length].long().tolist())
        for row, (group, length) in enumerate(zip(batch.group.tolist(), batch.length.tolist(), strict=True))
    ]


def on_rank(batch: Batch, rows: tuple[int, ...], rewards: list[float]) -> dict[str, Any]:
    cut = [(row, int(batch.length[row])) for row in rows]
    return {
        "rewards": [rewards[row] for row in rows],
        "response_lengths": [length for _, length in cut],
        "total_lengths": [length + 2 for _, length in cut],
        "unconcat_tokens": [torch.cat([torch.tensor([0, 1]), batch.tokens[row, :length]]) for row, length in cut],
        "loss_masks": [batch.mask[row, :length].int() for row, length in cut],
        "log_probs": [batch.old_logp[row, :length] for row, length in cut],
        "rollout_log_probs": [batch.sampler_logp[row, :length] for row, length in cut],
    }


def logits_for(batch: Batch, rows: tuple[int, ...]) -> Tensor:
    """Logits [1, T, V] of packed sequences, under which each response token has the log-prob of the batch."""
    found = []
    for row in rows:
        length = int(batch.length[row])
        logits = torch.zeros(length + 2, VOCABULARY, dtype=torch.float64)
        for position in range(length):
            probability = batch.logp[row, position].exp()
            logits[position + 1] = ((1 - probability) / (VOCABULARY - 1)).clamp(min=1e-12).log()
            logits[position + 1, batch.tokens[row, position]] = batch.logp[row, position]
        found.append(logits)
    return torch.cat(found)[None]


def log_probs_of_packed(
    logits: Tensor, *, args: Any, unconcat_tokens: list[Tensor], total_lengths: list[int], response_lengths: list[int], with_entropy: bool
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    assert args.loss_type == "custom_loss"
    assert not with_entropy
    found, end = [], 0
    for tokens, total, response in zip(unconcat_tokens, total_lengths, response_lengths, strict=True):
        end += total
        rows = logits[0, end - response - 1 : end - 1].log_softmax(-1)
        found.append(rows.gather(-1, tokens[-response:, None])[:, 0])
    return torch.empty(0), {"log_probs": found}


@pytest.fixture(autouse=True)
def _slime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the one function of slime that the loss calls."""
    for name in ("slime", "slime.backends", "slime.backends.megatron_utils", "slime.backends.megatron_utils.loss"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[name], "get_log_probs_and_entropy", log_probs_of_packed, raising=False)


def slime_reducer(batch: dict[str, Any], *, per_token: bool) -> Callable[[Tensor], Tensor]:
    def reduce(value: Tensor) -> Tensor:
        total = value.new_zeros(())
        for part, mask in zip(value.split(batch["response_lengths"]), batch["loss_masks"], strict=True):
            total = total + (part * mask).sum() / (1 if per_token else mask.sum().clamp(min=1))
        return total

    return reduce


class Hooks(NamedTuple):
    rewards: Callable[..., Any]
    advantage: Callable[..., Any]
    loss: Callable[..., Any]


BY_PATH = Hooks(slime_reward_post_process, slime_custom_advantage, slime_custom_loss)


def slime_step(recipe: RecipeSource, batch: Batch, hooks: Hooks = BY_PATH, **settings: Any) -> tuple[Tensor, Tensor]:
    """Rewards where all samples are, then two ranks with two micro-batches each; Megatron divides by tokens or by responses."""
    args = slime_args(recipe, **settings)
    raw, rewards = hooks.rewards(args, slime_samples(batch))
    assert [value for value in raw if value == value] == [value for value in batch.score.tolist() if value == value]
    total, gradient = torch.zeros((), dtype=torch.float64), torch.zeros_like(batch.logp)
    for rank in RANKS:
        data = on_rank(batch, rank, rewards)
        hooks.advantage(args, data)
        assert [len(one) for one in data["advantages"]] == [len(one) for one in data["returns"]] == data["response_lengths"]
        assert not any(one[mask == 0].any() for one, mask in zip(data["advantages"], data["loss_masks"], strict=True))
        for part in (slice(0, 1), slice(1, 4)):
            micro = {name: values[part] for name, values in data.items()}
            logits = logits_for(batch, rank[part]).requires_grad_()
            loss, log = hooks.loss(args, micro, logits, slime_reducer(micro, per_token=args.calculate_per_token_loss))
            torch.tensor(list(log.values()))
            total = total + loss.detach()
            gradient[list(rank[part])] += gradient_by_logp(loss, logits, micro, width=gradient.shape[1])
    divisor = batch.mask.sum() if args.calculate_per_token_loss else len(batch.score)
    return total / divisor, gradient / divisor


def gradient_by_logp(loss: Tensor, logits: Tensor, micro: dict[str, Any], *, width: int) -> Tensor:
    """Undo the softmax: d loss / d logit of the token itself is (1 - p) times d loss / d logp."""
    by_logits, logp = torch.autograd.grad(loss, logits)[0][0], logits.detach()[0].log_softmax(-1)
    found, end = torch.zeros(len(micro["total_lengths"]), width, dtype=logits.dtype), 0
    for row, (tokens, total, length) in enumerate(
        zip(micro["unconcat_tokens"], micro["total_lengths"], micro["response_lengths"], strict=True)
    ):
        end += total
        place = torch.arange(end - length - 1, end - 1)
        found[row, :length] = by_logits[place, tokens[-length:]] / -logp[place, tokens[-length:]].expm1()
    return found


@pytest.mark.parametrize("name", TWO_RECIPES)
def test_slime_step_is_the_step_of_the_recipe(name: str) -> None:
    # slime's rewards are Python floats that pass through float32.
    loss, gradient = slime_step(name, BATCH)
    expected, expected_gradient = staged_loss(name, BATCH)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


def test_slime_functions_are_the_same_by_path_and_by_hand() -> None:
    made = Hooks(slime_rewards("ntf"), slime_advantage("ntf"), slime_loss("ntf"))
    assert torch.equal(slime_step("ntf", BATCH)[1], slime_step("ntf", BATCH, made)[1])


def test_slime_needs_the_name_of_a_recipe() -> None:
    for call in (lambda: slime_reward_post_process(slime_args(tokencredit_recipe=None), []), lambda: slime_custom_advantage(object(), {})):
        with pytest.raises(ConfigError, match="name a recipe as tokencredit_recipe"):
            call()


def test_slime_corrects_for_the_sampler() -> None:
    loss, gradient = slime_step(MIS, BATCH)
    expected, expected_gradient = staged_loss(MIS, BATCH)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match="leave out --use-rollout-logprobs"):
        slime_step(MIS, BATCH, use_rollout_logprobs=True)
    data = on_rank(BATCH, (0,), [1.0] * 8)
    del data["rollout_log_probs"]
    slime_advantage(MIS)(slime_args(MIS), data)
    with pytest.raises(ConfigError, match="have the rollouts return log-probs"):
        slime_loss(MIS)(slime_args(MIS), data, logits_for(BATCH, (0,)), slime_reducer(data, per_token=False))


def test_slime_may_take_the_samplers_log_probs_for_the_old_ones() -> None:
    gradient = slime_step("ntf", BATCH, use_rollout_logprobs=True)[1]
    expected = staged_loss("ntf", BATCH._replace(old_logp=BATCH.sampler_logp))[1]
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(expected, staged_loss("ntf", BATCH)[1])


def test_slime_token_that_the_sampler_could_not_score_leaves_the_loss() -> None:
    unscored = BATCH.sampler_logp.clone()
    unscored[0, 1] = NAN
    for settings in ({}, {"use_rollout_logprobs": True}):
        gradient = slime_step("cispo", BATCH._replace(sampler_logp=unscored), **settings)[1]
        whole = slime_step("cispo", BATCH, **settings)[1]
        assert whole[0, 1] != 0
        whole[0, 1] = 0
        torch.testing.assert_close(gradient, whole)


def test_slime_removed_sample_has_no_length() -> None:
    """It lends its reward to a mean over responses, but no weight to one over tokens."""
    samples = [Sample(0, 0, 1.0, 4, None), Sample(0, 1, 0.0, 2, None), Sample(0, 2, 0.0, 9, None, remove_sample=True)]
    assert slime_rewards("opo")(slime_args("opo"), samples)[1] == pytest.approx([1 / 3, -2 / 3, -2 / 3])


def test_slime_micro_batch_without_tokens_still_reaches_the_model() -> None:
    data = on_rank(BATCH, (5,), [0.0] * 8)
    slime_advantage("grpo")(slime_args(), data)
    logits = logits_for(BATCH, (5,)).requires_grad_()
    loss, _ = slime_loss("grpo")(slime_args(), data, logits, slime_reducer(data, per_token=False))
    assert loss.detach() == 0
    assert not torch.autograd.grad(loss, logits)[0].any()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"loss_type": "policy_loss"}, "also set --loss-type custom_loss$"),
        ({"custom_reward_post_process_path": None}, "also set --custom-reward-post-process-path$"),
        ({"custom_advantage_function_path": None}, "also set --custom-advantage-function-path$"),
        ({"use_kl_loss": True}, "--use-kl-loss is True but is not read"),
        ({"kl_coef": 0.1}, "--kl-coef is 0.1 but is not read"),
        ({"entropy_coef": 0.01}, "--entropy-coef"),
        ({"use_tis": True}, "--use-tis"),
        ({"normalize_advantages": True}, "--normalize-advantages would change"),
        ({"rollout_top_p": 0.9}, "--rollout-top-p is 0.9"),
        ({"calculate_per_token_loss": True}, "'sequence-mean'; leave out --calculate-per-token-loss"),
    ],
)
def test_slime_refuses_settings_that_contradict_a_recipe(changed: dict[str, Any], said: str) -> None:
    args, data = slime_args("grpo", **changed), on_rank(BATCH, (0,), [0.0] * 8)
    for call in (
        lambda: slime_reward_post_process(args, slime_samples(BATCH)),
        lambda: slime_custom_advantage(args, data),
        lambda: slime_custom_loss(args, data, torch.zeros(1, 7, VOCABULARY), sum),
    ):
        with pytest.raises(ConfigError, match=said):
            call()


def test_slime_token_mean_needs_its_per_token_loss() -> None:
    with pytest.raises(ConfigError, match="'token-mean'; set --calculate-per-token-loss"):
        slime_step("dapo", BATCH, calculate_per_token_loss=False)


def test_slime_keeps_prompts_whole_only_where_its_batch_does() -> None:
    slime_step("grpo-fix", BATCH)
    with pytest.raises(ConfigError, match="would split a prompt's responses"):
        slime_step("grpo-fix", BATCH, n_samples_per_prompt=3)
    slime_step("dapo", BATCH, n_samples_per_prompt=3)


def test_slime_refuses_samples_that_it_cannot_compare() -> None:
    nameless, split = slime_samples(BATCH), slime_samples(BATCH)
    nameless[2].group_index = None
    split[1].rollout_id = split[0].rollout_id
    for samples, said in ((nameless, "has no group_index"), (split, "a rollout comes as several samples")):
        with pytest.raises(ConfigError, match=said):
            slime_rewards("grpo")(slime_args(), samples)


def test_slime_refuses_context_parallelism() -> None:
    data = on_rank(BATCH, (0, 4), [0.0] * 8)
    data["log_probs"][1] = data["log_probs"][1][:3]
    with pytest.raises(ConfigError, match=r"a response of 6 tokens came with 3 log-probs.*--context-parallel-size 1"):
        slime_advantage("grpo")(slime_args(), data)


# all three

EVERYWHERE = (skyrl_advantage, skyrl_policy_loss, prime_rl_loss, slime_rewards, slime_advantage, slime_loss)
TOKEN_MEAN = {"objective": {"aggregation": "token-mean"}}
REFUSED: tuple[tuple[RecipeSource, str], ...] = (
    ("delta", "credit 'delta' compares hidden states.*TRL, verl or the local engine"),
    ("forking-tokens", "credit 'forking' ranks the batch's tokens by entropy"),
    ("ktae", "credit 'ktae' compares the token ids of siblings"),
    ("fade", "advantage 'fade' follows the mean entropy of the batch"),
    ("dfpo", "objective 'dfpo' looks at a whole optimizer step"),
    ("clip-cov", "objective 'clip-cov' looks at a whole optimizer step"),
    ("kl-cov", "objective 'kl-cov' looks at a whole optimizer step"),
    ("ibpo-mask", "asks the policy to revise failed responses.*the local engine"),
    ("vineppo", "continues responses from the middle"),
    ("remax", "greedy response"),
    ("dapo-dynamic", "filter_groups is a matter of sampling"),
    ("cancellation", "batching 'reward-balanced' is a plan"),
    ({"recipe": "opo", "batching": {"type": "stratified"}}, "batching 'stratified' is a plan"),
    ({"recipe": "opo", "kl": {"beta": 0.1}}, "kl.beta is 0.1"),
    ({"recipe": "opo", "kl": {"beta": 0.1, "place": "reward"}}, "kl.beta is 0.1"),
    ("grpoo", "recipe 'grpoo' is not known"),
)
EVERY_HOOK_REFUSES = (REFUSED[0], REFUSED[-3], REFUSED[-1])
"""A stage that it cannot feed, a term that it would leave out, an unknown name."""


@pytest.mark.parametrize(
    ("make", "recipe", "said"),
    [
        *((slime_loss, *refused) for refused in REFUSED),
        *((make, *refused) for make in EVERYWHERE[:-1] for refused in EVERY_HOOK_REFUSES),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_no_hook_can_honour_is_refused_before_training(make: Callable[..., Any], recipe: RecipeSource, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(recipe)
