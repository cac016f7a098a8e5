"""Writes that torch refuses since memory overlaps, which fake tensors do not check.

A graph with one of them would fail when it runs, after what it has written until then.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import torch

from torchsmith_tracer._src.torch_private import has_symbols, storage_id


def refuse(
    target: Callable[..., object] | str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    tensors: Sequence[torch.Tensor],
) -> None:
    """Check what a call in place writes against itself and what the call reads.

    Args:
        target: what is called; without ``out=``, it writes to its first argument.
        args: its arguments, like ``kwargs`` with fake tensors.
        kwargs: by name.
        tensors: all tensors among them.

    Raises:
        RuntimeError: with torch's own text.
    """
    out = kwargs.get("out", args[0] if args else None)
    if target is operator.setitem:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(part, torch.Tensor | list) for part in index):
            return
        out, tensors = args[0][args[1]], tensors[1:]  # type: ignore[index]
    sharing: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.layout is torch.strided:
            sharing.setdefault(storage_id(tensor), []).append(tensor)
    for written in out if isinstance(out, list | tuple) else (out,):
        if not isinstance(written, torch.Tensor) or written.layout is not torch.strided:
            continue
        pairs = zip(written.stride(), written.size(), strict=True)
        if any(type(stride) is int and not stride and size != 1 for stride, size in pairs):
            raise RuntimeError(_ITSELF)
        others = () if has_symbols(written) else sharing.get(storage_id(written), ())
        if any(_partly(written, other) for other in others):
            raise RuntimeError(_EACH_OTHER)


def _partly(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two dense tensors of one storage share a part of it, but not all of it alike."""
    if a is b or has_symbols(b) or not (a.numel() and b.numel() and _dense(a) and _dense(b)):
        return False
    (first, end), (other, other_end) = _range(a), _range(b)
    if (first, end) == (other, other_end):
        return a.stride() != b.stride()
    return first < other_end and other < end


def _dense(tensor: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense.default(tensor))


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    first = int(tensor.storage_offset()) * tensor.element_size()
    return first, first + int(tensor.numel()) * tensor.element_size()


_ITSELF = (
    "unsupported operation: more than one element of the written-to tensor refers to a single "
    "memory location. Please clone() the tensor before performing the operation."
)
_EACH_OTHER = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
    "single memory location. Please clone() the tensor before performing the operation."
)
