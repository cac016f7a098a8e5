"""``TensorSpec``: what a guard on a tensor compares."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Metadata of a tensor; None stands for a size or stride that may vary.

    Attributes:
        type: exact Python type.
        dtype: element type.
        device: device with index.
        requires_grad: as the tensor says.
        size: one entry per dimension, None where symbolic.
        stride: likewise; None altogether for layouts without strides.
        layout: ``torch.strided`` for nearly everything.
        conj: conjugate bit.
        neg: negative bit.
    """

    type: type[torch.Tensor]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...] | None
    layout: torch.layout = torch.strided
    conj: bool = False
    neg: bool = False

    @staticmethod
    def of(
        tensor: torch.Tensor,
        dynamic_dims: Collection[int] = (),
        unbacked_dims: Collection[int] = (),
        *,
        dynamic_strides: Collection[int] = (),
    ) -> TensorSpec:
        """The spec of a real tensor.

        Args:
            tensor: the tensor to describe.
            dynamic_dims: dimensions whose size may vary; those of size 0 or 1 do not, except
            unbacked_dims: those of them whose size may be 0 or 1 as well.
            dynamic_strides: dimensions whose stride may vary even where it is no product of sizes;
                see ``stride_dependents`` for the others, which a contiguous tensor with a dynamic
                inner size has, and one with a dynamic batch has not.
        """
        # Sizes 0 and 1 are specialised, where something is known of the size at all.
        dynamic_dims = {d for d in dynamic_dims if tensor.size(d) > 1 or d in unbacked_dims}
        size: tuple[int | None, ...] = tuple(
            None if d in dynamic_dims else int(s) for d, s in enumerate(tensor.shape)
        )
        stride: tuple[int | None, ...] | None = None
        if tensor.layout is torch.strided:
            free = stride_dependents(tensor, dynamic_dims, dynamic_strides)
            stride = tuple(None if d in free else int(s) for d, s in enumerate(tensor.stride()))
        return TensorSpec(
            type(tensor),
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
            size,
            stride,
            tensor.layout,
            tensor.is_conj(),
            tensor.is_neg(),
        )


def leads_nowhere(size: int, stride: int) -> bool:
    """Whether a stride is that of a single element: what it is matters to nobody."""
    return size == 1 < stride


def from_smallest_stride(tensor: torch.Tensor) -> list[int]:
    """Dimensions from the smallest stride up; of equal strides those of one element first, which
    any may follow."""
    return sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), tensor.shape[d] != 1, -d))


def stride_dependents(
    tensor: torch.Tensor, dynamic_dims: Collection[int], dynamic_strides: Collection[int] = ()
) -> frozenset[int]:
    """Dimensions whose stride is a product that contains a dynamic size or stride.

    Dimensions are visited from the smallest stride up; while the strides are those of a dense
    tensor, each is the product of the sizes visited so far. A stride that is not such a product
    is a constant of its own (an expanded dimension, a slice of a bigger tensor), or a symbol where
    it is among ``dynamic_strides`` and leaves a gap, so that no elements overlap.
    """
    if not dynamic_dims and not dynamic_strides:
        return frozenset()
    free: set[int] = set()
    expected, tainted = 1, False
    for d in from_smallest_stride(tensor):
        size, stride = int(tensor.size(d)), int(tensor.stride(d))
        if leads_nowhere(size, stride) and d in dynamic_strides:
            free.add(d)
            continue
        if stride != expected or stride == 0:
            loose = stride > max(expected, 1) and d in dynamic_strides
            if loose:
                free.add(d)
            if stride != 0:
                expected, tainted = stride * size, loose or d in dynamic_dims
            continue
        if tainted:
            free.add(d)
        expected = stride * size
        tainted = tainted or d in dynamic_dims
    return frozenset(free)
