"""GPG: the group-centred reward, larger the fewer responses of the batch are rewarded (2504.02546)."""

from jaxtyping import Float, Int
from torch import Tensor

from tokencredit.advantage.dr_grpo import dr_grpo_advantage
from tokencredit.advantage.preset import PresetName, comparable, preset_named


def gpg_advantage(
    reward: Float[Tensor, " seq"], group: Int[Tensor, " seq"], *, preset: PresetName = "tokencredit"
) -> Float[Tensor, " seq"]:
    """A_i = (B / max(1, B')) (R_i - mean_g): B graded responses in the batch, B' of them with a reward other than 0.

    A group of one gives 0 (preset "verl": R, scaled alike), a NaN reward 0.
    """
    value = comparable(reward, preset_named(preset))
    graded = ~value.isnan()
    rewarded = graded & (value != 0)
    boost = graded.sum(dtype=value.dtype) / rewarded.sum(dtype=value.dtype).clamp(min=1)
    return boost * dr_grpo_advantage(reward, group, preset=preset)
