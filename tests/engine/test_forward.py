"""The scoring pass against the model called on one unpadded response at a time."""

import pytest
import torch

from tiny import made_up_rollouts, tiny_policy
from tokencredit.forward.padded import lm_head, score_rows


@pytest.mark.parametrize("max_tokens", [13, 30, 1000])
def test_evidence_equals_single_unpadded_passes(max_tokens: int) -> None:
    policy, rollouts = tiny_policy(), made_up_rollouts()
    evidence = score_rows(policy.model, rollouts, temperature=0.7, max_tokens=max_tokens, keep_hidden=True)
    assert evidence.hidden is not None
    head = lm_head(policy.model).weight
    for row, prompt in enumerate(rollouts.prompts):
        response = rollouts.tokens[row].tolist()
        with torch.no_grad():
            logp = (policy.model(input_ids=torch.tensor([[*prompt, *response]])).logits[0] / 0.7).log_softmax(-1)
        for position, token in enumerate(response):
            if not rollouts.mask[row, position]:
                assert evidence.logp[row, position] == 0
                assert evidence.entropy[row, position] == 0
                continue
            predicting = logp[len(prompt) + position - 1]
            assert float(evidence.logp[row, position]) == pytest.approx(float(predicting[token]), abs=1e-10)
            assert float(evidence.entropy[row, position]) == pytest.approx(float(-(predicting.exp() * predicting).sum()), abs=1e-10)
            from_hidden = (evidence.hidden[row, position] @ head.T / 0.7).log_softmax(-1)
            torch.testing.assert_close(from_hidden.detach(), predicting, atol=1e-10, rtol=0)


def test_bfloat16_runs_over_float32_weights_and_scores_in_float32() -> None:
    policy, rollouts = tiny_policy(torch.float32), made_up_rollouts()
    full = score_rows(policy.model, rollouts, temperature=1.0, max_tokens=1000)
    half = score_rows(policy.model, rollouts, temperature=1.0, max_tokens=1000, dtype="bfloat16")
    assert half.logp.dtype == torch.float32
    gap = (full.logp - half.logp).abs().max()
    assert 1e-5 < gap < 0.5
    assert next(policy.model.parameters()).dtype == torch.float32
