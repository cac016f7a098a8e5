"""Copies of inputs that a program cannot tell from the originals, and what else runs share.

A copy has the sizes, strides, alignment and overlaps of the original; tensors that share memory
share it in the copies, too. What requires a gradient does so in the copy, a leaf as a leaf.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

_ALIGNMENT = 64  # bytes: what a fresh storage is aligned to
_MARKS = "_dynamo_"  # prefix of the attributes that tell which sizes are dynamic
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


class _Derived(torch.autograd.Function):
    """Makes a tensor the result of a computation, without copying it: one that may be written,
    and whose gradient arrives at a leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


@dataclass
class Copier:
    """Copies tensors; those that share memory share it afterwards.

    Attributes:
        dtype: floating-point tensors become this, complex ones its complex twin. Then tensors of
            different dtypes no longer share memory.
        leaves: where the gradient of each copied tensor that requires one arrives, by the id of
            the original.
    """

    dtype: torch.dtype | None = None
    leaves: dict[int, torch.Tensor] = field(default_factory=dict)
    _done: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _memory: dict[tuple[int, torch.dtype | None], tuple[int, torch.Tensor]] = field(
        default_factory=dict
    )

    def all(self, tensors: Sequence[object]) -> list[object]:
        """A copy of each tensor; anything else as it is."""
        groups: dict[int, list[torch.Tensor]] = {}
        for x in tensors:
            if isinstance(x, torch.Tensor) and _has_memory(x) and id(x) not in self._done:
                groups.setdefault(x.untyped_storage().data_ptr(), []).append(x)
        for group in groups.values():
            self._copy_memory(group)
        return [self.one(x) if isinstance(x, torch.Tensor) else x for x in tensors]

    def one(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of ``tensor``; the same one each time."""
        known = self._done.get(id(tensor))
        if known is not None:
            return known[1]
        made = self._copied(tensor)
        self._done[id(tensor)] = tensor, made  # holds the original: its id is not used again
        return made

    # ------------------------------------------------------------------------------ memory

    def _wanted(self, dtype: torch.dtype) -> torch.dtype:
        if self.dtype is None or not (dtype.is_floating_point or dtype.is_complex):
            return dtype
        return self.dtype.to_complex() if dtype.is_complex else self.dtype

    def _copy_memory(self, group: list[torch.Tensor]) -> None:
        """Copy the part of one storage that ``group`` reaches; once per dtype where that changes,
        since a byte then has no place of its own any more."""
        storage = group[0].untyped_storage()
        spans = [_span(x) for x in group]
        low = min(start for start, _ in spans) // _ALIGNMENT * _ALIGNMENT
        high = max(end for _, end in spans)
        for dtype in {x.dtype for x in group} if self.dtype else {torch.uint8}:
            flat = torch.empty(0, dtype=dtype, device=storage.device)
            flat.set_(storage, low // dtype.itemsize, ((high - low) // dtype.itemsize,), (1,))
            memory = flat.to(self._wanted(dtype), copy=True)
            self._memory[storage.data_ptr(), dtype if self.dtype else None] = low, memory

    def _strided(self, tensor: torch.Tensor) -> torch.Tensor:
        kind: dict[str, Any] = {"dtype": self._wanted(tensor.dtype), "device": tensor.device}
        if not tensor.numel():
            return torch.empty_strided(tensor.size(), tensor.stride(), **kind)
        key = tensor.untyped_storage().data_ptr(), tensor.dtype if self.dtype else None
        if key not in self._memory:
            self._copy_memory([tensor])
        low, memory = self._memory[key]
        offset = tensor.storage_offset() - low // tensor.dtype.itemsize
        made = torch.empty(0, **kind)
        made.set_(memory.untyped_storage(), offset, tensor.size(), tensor.stride())
        if tensor.is_conj():
            made = made.conj()
        return torch._neg_view(made) if tensor.is_neg() else made

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if _is_fake(tensor):
            return tensor
        with torch.no_grad():
            if _has_memory(tensor):
                made = self._strided(tensor.detach())
            elif tensor.layout is torch.sparse_coo:
                made = torch.sparse_coo_tensor(
                    tensor._indices().clone(),
                    self._cast(tensor._values()),
                    tensor.shape,
                    is_coalesced=tensor.is_coalesced(),
                    check_invariants=False,
                )
            elif tensor.layout in _COMPRESSED:
                parts = (getattr(tensor, name)().clone() for name in _COMPRESSED[tensor.layout])
                build: Any = torch.sparse_compressed_tensor
                made = build(
                    *parts,
                    self._cast(tensor.values()),
                    tensor.shape,
                    layout=tensor.layout,
                    check_invariants=False,
                )
            else:
                made = self._cast(tensor.detach())
        return self._with_marks(tensor, made)

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        return copy if tensor.is_quantized else copy.to(self._wanted(tensor.dtype))

    def _with_marks(self, tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        """What is true of ``tensor`` besides its values."""
        if tensor.requires_grad:
            if tensor.is_leaf:
                made = made.requires_grad_()
                self.leaves[id(tensor)] = made
            else:
                leaf = torch.empty_strided(
                    made.size(), made.stride(), dtype=made.dtype, device=made.device
                ).requires_grad_()
                with torch.enable_grad():
                    made = _Derived.apply(leaf, made)  # type: ignore[no-untyped-call]
                self.leaves[id(tensor)] = leaf
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made.detach(), tensor.requires_grad)
            self.leaves[id(tensor)] = made
        if tensor.is_leaf and tensor.grad is not None:
            made.grad = self.one(tensor.grad)
        for name, value in vars(tensor).items():
            if name.startswith(_MARKS) or name == "_has_dynamo_dim_marking":
                setattr(made, name, value)
        return made


def clone_input(tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy with the layout of ``tensor``: sizes, strides, alignment, overlaps, and with its
    gradient, marks and place in autograd. Fake tensors come back as they are.

    Args:
        tensor: strided, sparse or quantized.
        dtype: what floating-point values become.
    """
    return Copier(dtype).one(tensor)


def clone_inputs(inputs: Any, *, dtype: torch.dtype | None = None) -> Any:
    """Copies of a list, tuple or dict of inputs that share memory as the originals do.

    Returns:
        A list for a list or tuple, in which all that is no tensor is as it was; for a dict, a
        dict, whose tuples become lists.

    Raises:
        TypeError: a value of a dict is neither a tensor nor a list or tuple.
    """
    copier = Copier(dtype)

    def copies(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            copier.all(value)
            return [copies(x) if isinstance(x, (list, tuple)) else x for x in copier.all(value)]
        return copier.one(value)

    if not isinstance(inputs, Mapping):
        return copies(inputs)
    flat: list[object] = []
    for name, value in inputs.items():
        if not isinstance(value, (torch.Tensor, list, tuple)):
            raise TypeError(f"input {name!r} is a {type(value).__name__}, not a tensor or a tuple")
        flat += value if isinstance(value, (list, tuple)) else [value]
    copier.all(flat)  # together, so that memory that they share stays shared
    return {name: copies(value) for name, value in inputs.items()}


@contextlib.contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Put back the state of all random generators afterwards: torch's on the CPU and on every GPU
    in use, Python's, and numpy's if it is loaded."""
    numpy = sys.modules.get("numpy")
    python, array = random.getstate(), numpy.random.get_state() if numpy else None
    gpus = list(range(torch.cuda.device_count() if _uses_gpu() else 0))
    with torch.random.fork_rng(gpus):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy:
                numpy.random.set_state(array)


def checkpoint_params(module: torch.nn.Module) -> Callable[[], None]:
    """Remember the parameters and buffers of ``module`` and the state of torch's generators.

    Returns:
        A function that puts back the generators, and the values of those that were written since.
    """
    state = torch.random.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if _uses_gpu() else None
    saved = [
        (tensor, tensor._version, tensor.detach().clone())
        for tensor in (*module.parameters(), *module.buffers())
    ]

    def restore() -> None:
        torch.random.set_rng_state(state)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
        with torch.no_grad():
            for tensor, version, value in saved:
                # batch norm writes its statistics without counting it as a write
                if tensor._version != version or not torch.equal(tensor, value):
                    tensor.copy_(value)

    return restore


def _uses_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _is_fake(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "fake_mode")


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a plain window into a storage."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
        and not _is_fake(tensor)
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type in ("cpu", "cuda")
    )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte, and the one behind the last, of what ``tensor`` reaches in its storage."""
    start = int(tensor.storage_offset())
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()) if n > 1)
    size = tensor.element_size()
    return start * size, (start + reach + (tensor.numel() > 0)) * size
