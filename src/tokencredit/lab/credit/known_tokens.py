"""The tokens that a credit can be held against: sampled, in the loss, and with a known true advantage."""

from jaxtyping import Bool, Float
from torch import Tensor

from tokencredit.lab.credit.batch import Drawn
from tokencredit.lab.credit.prefix_tree import Truth


def known_tokens(batch: Drawn, truth: Truth) -> Bool[Tensor, "seq tok"]:
    return ~truth.advantage.isnan() & batch.rollouts.loss_mask.cpu()


def flat(value: Tensor, known: Bool[Tensor, "seq tok"]) -> Float[Tensor, " tok"]:
    """Row after row; what is one number per response is that of each of its tokens."""
    value = value.cpu()
    return (value if value.dim() == 2 else value[:, None].expand(known.shape))[known].double()
