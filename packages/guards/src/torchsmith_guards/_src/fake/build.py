"""Fake tensors built from layouts, without running an operator under the mode."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from torchsmith_guards._src.fake.layouts.base import PLAIN_DTYPES, Layout, Result
from torchsmith_guards._src.shapes.queries import settled

_without_dispatch = torch._C._DisableTorchDispatch
# Below what makes views: who called the operator does that with the result.
_below_views = torch._C._ExcludeDispatchKeyGuard
_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
_warn_on_data_pointer = torch._C._set_warn_deprecated_on_mutable_data_ptr


def is_plain(
    mode: FakeTensorMode, values: Iterable[Any], dtypes: Collection[torch.dtype] = PLAIN_DTYPES
) -> bool:
    """Whether every tensor among the values is an ordinary fake tensor of this mode.

    Ordinary means strided, of a common type, without a pending negation. Real tensors, subclasses,
    other modes' tensors are not, nor tensors of known value when there are no others.
    """
    tensors = known = 0
    for value in values:
        if type(value) is FakeTensor:
            tensors += 1
            known += value.constant is not None
            if (
                value.fake_mode is not mode
                or value.dtype not in dtypes
                or value.layout is not torch.strided
                or value.is_neg()
            ):
                return False
        elif isinstance(value, torch.Tensor) or (
            isinstance(value, list | tuple) and not is_plain(mode, value, dtypes)
        ):
            return False
    return known == 0 or known < tensors


def build(
    mode: FakeTensorMode, result: Result, base: FakeTensor | None, *, symbolic: bool
) -> object:
    """The values that ``result`` describes.

    Args:
        mode: whose fake tensors to make.
        result: the layouts.
        base: the tensor whose storage the results share; None for new tensors.
        symbolic: whether any size of the program is.
    """
    if isinstance(result, list):
        parts = [_tensor(mode, p, base, symbolic) if isinstance(p, tuple) else p for p in result]
        return parts if base is not None else tuple(parts)
    return _tensor(mode, result, base, symbolic)


def settle(mode: FakeTensorMode, result: Any) -> Any:
    """``result`` of a call with every size told apart from 0 and 1."""
    if isinstance(result, torch.Tensor):
        size = result.shape
        if all(type(n) is int for n in size):
            return result
        known = [settled(n) for n in size]
        if all(a is b for a, b in zip(known, size)) or type(result) is not FakeTensor:
            return result
        layout = (known, result.stride(), result.dtype, result.device, result.storage_offset())
        return _tensor(mode, layout, result, symbolic=True)
    if type(result) in (list, tuple):
        return type(result)(settle(mode, part) for part in result)
    return result


def _tensor(
    mode: FakeTensorMode, layout: Layout, base: FakeTensor | None, symbolic: bool
) -> FakeTensor:
    size, stride, dtype, device, offset = layout
    if symbolic:
        size = [settled(n) for n in size]
    if base is None:
        return new_strided(mode, size, stride, dtype, device)
    if symbolic:  # extents of storage are not asked for, since that would make guards
        with in_kernel_invocation_manager(mode):
            meta = torch.as_strided(base, size, stride, offset)
        with _without_dispatch():
            return wrap(mode, meta, device)
    with _without_dispatch(), _below_views(_VIEWS):
        # An operator on ``base`` itself would ask for its device, for which torch imports its
        # distributed tensors and with them sympy: more than all of a small first call.
        meta = torch.empty(0, dtype=dtype, device="meta")
        meta.set_(base.untyped_storage(), offset, size, stride)
        return wrap(mode, meta, device)


def new_strided(
    mode: FakeTensorMode, size: Any, stride: Any, dtype: torch.dtype, device: torch.device
) -> FakeTensor:
    """A new fake tensor of this layout."""
    with _without_dispatch():
        meta = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        return wrap(mode, meta, device)


def new_view(mode: FakeTensorMode, base: FakeTensor, *layout: Any) -> FakeTensor:
    """A tensor with storage and version of ``base``, of this size, stride and offset, that autograd
    does not know as a view of it."""
    size, stride, offset = layout
    with _without_dispatch():
        extent = base.untyped_storage().nbytes()  # of ``x[0]`` it may be symbolic though no size is
        if all(type(n) is int for n in (*size, *stride, extent)):
            meta = base.detach()  # unlike ``as_strided`` it asks for no device, see ``_tensor``
            with _below_views(_VIEWS):
                meta.set_(base.untyped_storage(), offset, size, stride)
        else:
            meta = torch.as_strided(base, size, stride, offset)
        return wrap(mode, meta, base.fake_device)


def wrap(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> FakeTensor:
    """``FakeTensor(mode, meta, device)`` for new tensors without history. What the constructor
    sets, in many steps, depends on nothing but mode and device, so it is copied."""
    templates: dict[torch.device, Any] = mode.__dict__.setdefault("_templates", {})
    known = templates.get(device)
    if known is None:
        made = FakeTensor(mode, meta, device)
        own = {name: value for name, value in vars(made).items() if value is not mode}
        templates[device] = (made.fake_device, own)
        return made
    made = torch.Tensor._make_subclass(
        FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=known[0]
    )
    _warn_on_data_pointer(made)
    made.__dict__.update(known[1], fake_mode=mode)
    return made
