"""What DelTA's proxy vectors stand for; each law names wrong versions of the code that it must reject."""

from types import SimpleNamespace

import torch

from laws.delta_cases import (
    SOFT,
    VOCAB,
    WIDTH,
    Case,
    Law,
    assert_near,
    coefficients,
    log_probs,
    own_margins,
    tokens_of,
)


def law_confident_tokens_of_a_side_share_one_score(delta: SimpleNamespace, case: Case) -> None:
    """At p = 1 the vector is 0, and the contrast ||mu-||^2 - ||mu+||^2 whatever the token."""
    certain = case.inputs.logp.clone()
    certain[:, 0] = 0.0
    vectors = delta.row_vectors(certain[case.inputs.mask], case.inputs.hidden[case.inputs.mask])
    advantage = tokens_of(case)[1]
    is_certain = (case.inputs.mask.nonzero()[:, 1] == 0) & (advantage != 0)
    for refinements in (0, 1, 3):
        margin = own_margins(delta, vectors.vectors, advantage, refinements=refinements)
        contrast = (margin * advantage.sign())[is_certain]
        assert_near(contrast, contrast[:1].expand_as(contrast))
        if refinements == 0:
            positive, negative, _ = delta.CentroidSums().add(vectors, advantage).finish()
            assert_near(contrast[0], negative.square().sum() - positive.square().sum())


def law_head_proxy_keeps_the_token(delta: SimpleNamespace, case: Case) -> None:
    """Ids 0 and 1 are equally likely after the same hidden state, so (1 - p) h cannot tell them apart."""
    hidden, tokens, head = case.inputs.hidden.clone(), case.inputs.tokens.clone(), case.inputs.head.clone()
    hidden[0, 1] = hidden[0, 0]
    tokens[0, :2] = torch.tensor([0, 1])
    head[1] = head[0] + torch.linalg.cross(hidden[0, 0], head[0])
    inputs = case.inputs._replace(hidden=hidden, tokens=tokens, head=head, logp=log_probs(hidden, head, tokens))
    by_row, by_head = (coefficients(delta, inputs, proxy=proxy, gamma_scale=SOFT, **case.knobs)[0] for proxy in ("row", "head"))
    assert_near(by_row[0], by_row[1])
    assert (by_head[0] - by_head[1]).abs() > 1e-6


def law_head_vectors_are_outer_products(delta: SimpleNamespace, case: Case) -> None:
    hidden, ids, head = case.inputs.hidden[case.inputs.mask], case.inputs.tokens[case.inputs.mask], case.inputs.head
    probability = (hidden @ head.T / 1.4).softmax(-1)
    matrices = (torch.eye(VOCAB, dtype=torch.float64)[ids] - probability)[:, :, None] * hidden[:, None, :]
    weight = torch.randn(len(ids), generator=case.draw, dtype=torch.float64)
    direction = torch.randn(VOCAB, WIDTH, generator=case.draw, dtype=torch.float64)
    vectors = delta.HeadVectors(hidden, ids, head, 1.4)
    assert_near(vectors.weighted_sum(weight), torch.einsum("t,tvh->vh", weight, matrices))
    assert_near(vectors.dot(direction), torch.einsum("tvh,vh->t", matrices, direction))
    assert_near(vectors.squared_norm(), matrices.square().sum((1, 2)))


def law_hidden_gradient_over_the_whole_vocabulary_is_exact(delta: SimpleNamespace, case: Case) -> None:
    hidden, ids, head = case.inputs.hidden[case.inputs.mask].requires_grad_(), case.inputs.tokens[case.inputs.mask], case.inputs.head
    (gradient,) = torch.autograd.grad(log_probs(hidden, head, ids, 1.4).sum(), hidden)
    vectors = delta.hidden_gradient_vectors(hidden.detach(), ids, head, temperature=1.4, top_k=VOCAB, chunk=3).vectors
    assert_near(vectors / 1.4, gradient)


PROXY_LAWS: dict[Law, list[str]] = {
    law_confident_tokens_of_a_side_share_one_score: ["row proxy without confidence"],
    law_head_proxy_keeps_the_token: ["head proxy is the row proxy"],
    law_head_vectors_are_outer_products: [
        "head sum without the expected row",
        "head dot without the expected row",
        "head norm without the cross term",
        "head at sampling temperature one",
    ],
    law_hidden_gradient_over_the_whole_vocabulary_is_exact: [
        "hidden gradient at sampling temperature one",
        "hidden gradient without renormalisation",
    ],
}
