"""Which sizes and numbers become symbolic: history of what changed between compiles.

Policy: the first compile is static; a size or int that differs at a recompile becomes symbolic
(``dynamic=None``). ``dynamic=True`` makes all symbolic from the start, ``False`` none. Sizes 0
and 1 are always specialised.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torchsmith_guards import PinnedSource, Source

_VARIES = None


@dataclass(slots=True)
class FrameState:
    """What the compiles of one code object have seen, by source text. The region keeps it.

    Attributes:
        sizes: sizes of tensors; None in place of one that varied, None altogether after the
            number of dimensions changed.
        scalars: ints and floats; None after the value varied.
    """

    sizes: dict[str, list[int | None] | None] = field(default_factory=dict)
    scalars: dict[str, int | float | None] = field(default_factory=dict)

    def dynamic_dims(
        self, source: Source, tensor: torch.Tensor, dynamic: bool | None
    ) -> frozenset[int]:
        """Note the sizes of ``tensor`` and give the dimensions that are to be symbolic."""
        if dynamic is False:
            return frozenset()
        shape = tuple(tensor.shape)
        key = source.expr
        if key not in self.sizes:
            self.sizes[key] = list(shape)
        known = self.sizes[key]
        if known is not None:
            if len(known) != len(shape):
                self.sizes[key] = known = None
            else:
                for i, (old, new) in enumerate(zip(known, shape, strict=True)):
                    if old != new:
                        known[i] = _VARIES
        if isinstance(tensor, torch.nn.Parameter):
            return frozenset()
        dims = {
            d for d in range(len(shape)) if dynamic is True or known is None or known[d] is _VARIES
        }
        dims -= _marks(tensor, "_dynamo_static_indices")
        dims |= _marks(tensor, "_dynamo_dynamic_indices")
        dims |= _marks(tensor, "_dynamo_weak_dynamic_indices")
        return frozenset(d for d in dims if d < len(shape) and shape[d] > 1)

    def is_dynamic_scalar(self, source: Source, value: int | float, dynamic: bool | None) -> bool:
        """Note a number and tell whether it is to be symbolic."""
        if dynamic is False:
            return False
        key, root = source.expr, source.root
        if isinstance(root, PinnedSource):  # many objects have the same text
            key = f"{id(root.obj)} {key}"
        if key not in self.scalars:
            self.scalars[key] = value
            return dynamic is True
        if self.scalars[key] != value:
            self.scalars[key] = _VARIES
        return dynamic is True or self.scalars[key] is _VARIES


def _marks(tensor: torch.Tensor, attribute: str) -> set[int]:
    """Dimensions that the user marked with ``torch._dynamo.mark_dynamic`` and its relatives."""
    return set(getattr(tensor, attribute, None) or ())
