"""Torch-function modes that traced code enters: a mode's ``__torch_function__`` is asked before the
classes of an operator's arguments, with the mode itself off the stack.

Only the trace's own notion of the stack changes; generated code puts what is still on it after the
graph on the real one. ``with torch.device(...)`` is a mode that torch itself defines: it says where
new tensors are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from torchsmith_tracer._src import torch_private as private
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import builtin, method
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.contexts import FunctionMode, TorchFunctionDisabled
from torchsmith_tracer._src.values.torch_queries import handles, register

_ALL = private.disable_torch_function[1]  # switches modes off, too


def active(tx: Trace) -> list[FunctionMode]:
    """The modes that traced code has entered and that are not being asked, outermost first."""
    contexts = tx.graph.contexts
    if any(isinstance(c, TorchFunctionDisabled) and c.cls is _ALL for c in contexts):
        return []
    return [c for c in contexts if isinstance(c, FunctionMode) and not c.suspended]


def watching(tx: Trace) -> bool:
    """Whether a mode of the user's is to be asked about every operator."""
    return bool(tx.graph.contexts) and any(mode.watches for mode in active(tx))


def places(tx: Trace, obj: object) -> bool:
    """Whether a device context says where ``obj`` makes its tensor."""
    return bool(tx.graph.contexts and active(tx)) and obj in private.device_constructors()


@contextmanager
def suspended(tx: Trace, mode: FunctionMode) -> Iterator[None]:
    """While a mode is asked it is not on the stack."""
    mode.suspended = True
    try:
        yield
    finally:
        mode.suspended = False


def ask(tx: Trace, mode: FunctionMode, args: list[Value]) -> Value:
    """``mode.__torch_function__(func, types, args, kwargs)``."""
    with suspended(tx, mode):
        if mode.watches:
            return tx.interp.call(mode.mode.getattr(tx, "__torch_function__"), args)
        func, _, given, *rest = args
        kwargs = dict(zip(("kwargs",), rest, strict=False)).get("kwargs")
        table = {} if kwargs is None else tx.interp.keywords(kwargs)
        device = table.get("device")
        if device is None or tx.interp.is_none(device):
            table["device"] = mode.mode
        return tx.interp.call(func, tx.interp.unpack(given), table)


def _enter(tx: Trace, mode: FunctionMode) -> None:
    tx.graph.enter_context(mode)


def _leave(tx: Trace, *, watches: bool) -> Value:
    found = active(tx)
    if not found or found[-1].watches is not watches:
        raise Unsupported(
            "opaque-call", what="leaving a torch-function mode that was entered before"
        )
    tx.graph.exit_context(found[-1])
    return found[-1].mode


@builtin(private.push_function_mode)
def _push(tx: Trace, mode: Value) -> Value:
    _enter(tx, FunctionMode(mode, watches=True))
    return NONE


@builtin(private.pop_function_mode)
def _pop(tx: Trace) -> Value:
    return _leave(tx, watches=True)


@method(torch.device, "__enter__")
def _enter_device(tx: Trace, device: Value) -> Value:
    _enter(tx, FunctionMode(device, watches=False))
    return device


@method(torch.device, "__exit__")
def _exit_device(tx: Trace, device: Value, *args: Value) -> Value:
    _leave(tx, watches=False)
    return NONE


def _count(tx: Trace) -> int:
    return private.function_mode_count() + len(active(tx))


@handles(torch.get_default_device)
def _default_device(tx: Trace) -> Value:
    devices: list[Any] = [m.mode.as_constant() for m in active(tx) if not m.watches]
    if any(map(private.is_unnumbered, devices[-1:])):
        tx.interp.concrete(tx.world.query(private.current_device))
    with devices[-1] if devices else nullcontext():
        return ConstantValue(torch.get_default_device())


register(private.function_mode_count, lambda tx, args, kwargs: ConstantValue(_count(tx)))
register(private.function_mode_active, lambda tx, args, kwargs: ConstantValue(_count(tx) > 0))
