"""Any causal LM folder: other families than the shipped one are sampled, scored and trained alike."""

from pathlib import Path

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from engine.runs import run, small_config
from tokencredit.errors import ConfigError
from tokencredit.forward.padded import score_rows
from tokencredit.policy.policy import load_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.rollout.sampler import sample
from tokencredit.tasks.steps import ALPHABET
from tokencredit.tasks.tokenizer import character_tokenizer

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


def qwen3(common: dict[str, int]) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, **common, initializer_range=0.3))


def gpt2(common: dict[str, int]) -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=128, initializer_range=0.3, **common))


def gemma2(common: dict[str, int]) -> PreTrainedModel:
    """Soft-capped logits, a scaled embedding, and sliding-window layers."""
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, **common, initializer_range=0.3, sliding_window=16, final_logit_softcapping=2.0))


@pytest.fixture(params=[qwen3, gpt2, gemma2], ids=lambda make: make.__name__)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    tokenizer = character_tokenizer(ALPHABET)
    torch.manual_seed(0)
    ends = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": 2}
    path = tmp_path / request.param.__name__
    request.param(ends).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_sampler_and_scoring_pass_agree_with_uneven_prompts(folder: Path) -> None:
    policy = load_policy(str(folder), device=torch.device("cpu"), dtype="float32")
    prompts = [policy.encode(text) for text in ("1+2=", "1+2+3-4-5=", "9=")]
    rollouts, seen = sample(policy, prompts, SamplingParams(group_size=4, max_new_tokens=24, seed=1, keep_hidden=True))
    scored = score_rows(policy.model, rollouts, temperature=1.0, max_tokens=80, keep_hidden=True)
    inside = rollouts.mask
    torch.testing.assert_close(seen.logp[inside], scored.logp[inside], atol=1e-4, rtol=0)
    torch.testing.assert_close(seen.entropy[inside], scored.entropy[inside], atol=1e-4, rtol=0)
    assert seen.hidden is not None
    assert scored.hidden is not None
    torch.testing.assert_close(seen.hidden[inside], scored.hidden[inside], atol=1e-3, rtol=0)


def test_a_run_moves_its_weights(folder: Path, tmp_path: Path) -> None:
    before = load_policy(str(folder), device=torch.device("cpu"), dtype="float32").model.state_dict()
    # A random policy is never right; a length penalty gives its groups a spread.
    config = small_config(model=str(folder), steps=2, recipe="dr-grpo", shape={"type": "overlong", "buffer": 1.0})
    outcome = run(config, tmp_path / "run")
    assert any(not torch.equal(before[name], value) for name, value in outcome.policy.model.state_dict().items())


def test_head_proxies_refuse_a_model_whose_logits_are_more_than_hidden_times_head(folder: Path, tmp_path: Path) -> None:
    config = small_config(model=str(folder), steps=1, credit={"proxy": "head"}, shape={"type": "overlong", "buffer": 1.0})
    if folder.name == "gemma2":
        with pytest.raises(ConfigError, match=r"credit 'delta': .* this model does more than hidden x head"):
            run(config, tmp_path / "run")
    else:
        assert run(config, tmp_path / "run").result["steps"] == 1


def test_dropout_and_the_global_generator_have_no_say(tmp_path: Path) -> None:
    """GPT-2's configuration has dropout 0.1; the same run seed must give the same bits whatever torch's own seed is."""
    tokenizer = character_tokenizer(ALPHABET)
    torch.manual_seed(0)
    model = gpt2({"vocab_size": len(tokenizer), "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": 2})
    assert model.config.resid_pdrop > 0
    model.save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    config = small_config(model=str(tmp_path / "gpt2"), steps=2, recipe="dr-grpo", shape={"type": "overlong", "buffer": 1.0})
    outcomes = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        outcomes.append(run(config, tmp_path / str(global_seed)).policy.model.state_dict())
    assert all(torch.equal(outcomes[0][name], outcomes[1][name]) for name in outcomes[0])
