"""Which sizes and numbers become symbolic: history of what changed between compiles.

Policy: the first compile is static; a size or int that differs at a recompile becomes symbolic
(``dynamic=None``). ``dynamic=True`` makes all symbolic from the start, ``False`` none. Sizes 0
and 1 are always specialised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torchsmith_guards import PinnedSource, ShapeEnv, Source, TensorPropertySource

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.values.torch_queries import register_name
from torchsmith_tracer.errors import ConstraintViolationError

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


def check_marks(env: ShapeEnv, source: Source, tensor: torch.Tensor) -> None:
    """The program has not specialised what is marked as dynamic in ``tensor``, found at ``source``.

    Raises:
        ConstraintViolationError: it has.
    """
    for dim in sorted(_marks(tensor, "_dynamo_dynamic_indices")):
        text = f"[TS-T907] dimension {dim} of {source.expr} was marked as dynamic, but"
        symbol = env.symbol_of(TensorPropertySource(source, "size", dim))
        if symbol is not None and env.simplify(symbol).free_symbols:
            continue
        for guard in env.guards:
            if symbol in guard.condition.free_symbols:
                text += f" the program needs {guard.condition} ({guard.user_line}),"
        fixed = f"{text} its size is fixed to {tensor.size(dim)}; use maybe_mark_dynamic, or none"
        raise ConstraintViolationError(fixed)


def _refuse(*args: object) -> NoReturn:
    raise Unsupported("torch-state", what="a mark on a tensor's sizes")


for _name in "mark_dynamic maybe_mark_dynamic mark_static mark_unbacked".split():
    register_name("torch._dynamo.decorators", _name, _refuse)


def _marks(tensor: torch.Tensor, attribute: str) -> set[int]:
    """Dimensions that the user marked with ``torch._dynamo.mark_dynamic`` and its relatives."""
    return set(getattr(tensor, attribute, None) or ())
