"""Results of fake operators with symbolic sizes, remembered for the rest of a trace.

Torch's own cache works for static sizes only, while a symbolic operator runs Python decompositions
that take milliseconds. Equal layers ask for the same results again. Expressions are hash-consed, so
a key of them is cheap. What the first run recorded as guards stays valid for the later ones; a
rollback of the trace forgets guards and results together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from torchsmith_guards._src.fake.build import new_strided
from torchsmith_guards._src.shapes.env import ShapeEnv
from torchsmith_guards._src.shapes.sym_node import SymNode

_UNCACHED_TAGS = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
_CONSTANTS = (int, float, bool, str, complex, type(None))
_TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_ELIGIBLE: dict[object, bool] = {}


class _NotCacheable(Exception):
    """An argument or a result has no key."""


_Maker = Callable[[FakeTensorMode], object]


class ResultCache:
    """Results of the operators of one ``ShapeEnv``."""

    def __init__(self, env: ShapeEnv) -> None:
        self._env = env
        self._entries: dict[object, _Maker] = {}

    def key(
        self,
        mode: FakeTensorMode,
        func: OpOverload[..., Any],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object | None:
        """The key of a call, or None when its result must be computed each time."""
        eligible = _ELIGIBLE.get(func)
        if eligible is None:
            eligible = _ELIGIBLE[func] = _is_eligible(mode, func)
        if not eligible:
            return None
        try:
            parts = (_keys(mode, args), tuple(kwargs), _keys(mode, kwargs.values()))
        except _NotCacheable:
            return None
        state = (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
        )
        return (func, state, parts)

    def get(self, mode: FakeTensorMode, key: object) -> object:
        """A fresh result for ``key``, or NotImplemented when there is none yet."""
        make = self._entries.get(key)
        return NotImplemented if make is None else make(mode)

    def put(self, key: object, result: object, args: Iterable[object]) -> None:
        """Remember ``result`` if it can be made again from its metadata."""
        if self._env.suppressed:
            return  # the guards behind it have not been recorded
        try:
            self._entries[key] = _maker(result, {s for a in args for s in _storages(a)})
        except _NotCacheable:
            return
        self._env.on_rollback(lambda: self._entries.pop(key, None))


def _is_eligible(mode: FakeTensorMode, func: object) -> bool:
    """True for functional operators of torch that make new tensors."""
    if not isinstance(func, OpOverload) or func.namespace not in ("aten", "prims"):
        return False
    if func.is_view or func in mode.lift_fns or func._schema.is_mutable:
        return False
    if any(r.alias_info is not None for r in func._schema.returns):
        return False
    return not any(tag in func.tags for tag in _UNCACHED_TAGS)


def _keys(mode: FakeTensorMode, values: Iterable[object]) -> tuple[object, ...]:
    return tuple([_key(mode, value) for value in values])


def _key(mode: FakeTensorMode, value: object) -> object:
    if isinstance(value, torch.Tensor):
        if type(value) is not FakeTensor or value.fake_mode is not mode:
            raise _NotCacheable
        if value.constant is not None or value.layout is not torch.strided:
            raise _NotCacheable
        return (
            _keys(mode, value.shape),
            _keys(mode, value.stride()),
            _key(mode, value.storage_offset()),
            value.dtype,
            value.device,
            value.requires_grad,
            value.is_conj(),
            value.is_neg(),
        )
    if isinstance(value, _SYMBOLIC):
        node = value.node
        if not isinstance(node, SymNode):
            raise _NotCacheable
        return (SymNode, node.content)
    if isinstance(value, list | tuple):
        return (type(value), _keys(mode, value))
    if isinstance(value, _CONSTANTS + _TORCH_CONSTANTS):
        return (float, repr(value)) if isinstance(value, float) else (type(value), value)
    raise _NotCacheable


def _storages(value: object) -> Iterable[int]:
    if isinstance(value, torch.Tensor):
        yield value.untyped_storage()._cdata
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _storages(part)


def _maker(result: object, inputs: set[int]) -> _Maker:
    """What makes ``result`` again."""
    if isinstance(result, list | tuple):
        kind: Callable[..., object] = type(result)
        if hasattr(kind, "_make"):  # a named tuple takes its fields one by one
            kind = kind._make
        parts = [_maker(part, inputs) for part in result]
        return lambda mode: kind([make(mode) for make in parts])
    if isinstance(result, FakeTensor):
        plain = result.layout is torch.strided and result.constant is None
        bits = result.is_conj() or result.is_neg() or result.requires_grad
        if not plain or bits or not inputs.isdisjoint(_storages(result)):
            raise _NotCacheable
        offset = result.storage_offset()
        if type(offset) is not int or offset != 0:
            raise _NotCacheable
        layout = tuple(result.shape), result.stride(), result.dtype, result.device
        return lambda mode: new_strided(mode, *layout)
    if result is None or isinstance(result, int | float | torch.SymInt):
        return lambda mode: result
    raise _NotCacheable
