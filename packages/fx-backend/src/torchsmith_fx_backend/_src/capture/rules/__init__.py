"""Decompositions: operators as formulas of about 150 primitive ones, chosen so that they fuse.

In: an operator call. Out: calls of simpler operators through the recording mode. Matrix products,
convolution and attention are left whole: eager's kernels are the fast ones. Read ``registry.py``
first, then any rule file; ``from_torch.py`` takes rare formulas from torch's own table.
"""

from torchsmith_fx_backend._src.capture.rules import (  # noqa: F401  (they register their rules)
    activation,
    gradients,
    losses,
    normalization,
    padding,
    pointwise,
    reduction,
    shape,
)
from torchsmith_fx_backend._src.capture.rules.registry import RULES, Mode, Rule, aten

# Autograd knows the pieces of a tensor as what one operator returned, and so must who replays them.
JOINT_RULES = {
    op: each
    for op, each in RULES.items()
    if op not in (aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)
}

__all__ = ["JOINT_RULES", "RULES", "Mode", "Rule"]
