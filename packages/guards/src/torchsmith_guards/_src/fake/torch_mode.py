"""Torch's ``FakeTensorMode``, set up for our ``ShapeEnv``; frequent operators go by rules."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.nested._internal.nested_int import NestedIntNode

from torchsmith_guards._src.fake.build import build, is_plain, settle, wrap
from torchsmith_guards._src.fake.kernels import agree_with_kernels
from torchsmith_guards._src.fake.layouts.base import Effect, Entry, entry_of
from torchsmith_guards._src.fake.layouts.by_data import data_rule
from torchsmith_guards._src.fake.layouts.views import GUARDED_VIEW
from torchsmith_guards._src.fake.lean import defaults, knows_constructor, without_dynamo
from torchsmith_guards._src.fake.result_cache import ResultCache
from torchsmith_guards._src.shapes.env import ShapeEnv


class _Quiet(logging.Filter):
    """Drops torch's own traceback log of an operator that fails while our modes are active.

    The exception itself goes to the caller, who reports it in the user's terms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.active = threading.local()

    def enter(self, step: int) -> None:
        self.active.depth = getattr(self.active, "depth", 0) + step

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self.active, "depth", 0)


_RAGGED = itertools.count(1 << 40)  # torch numbers those of real tensors from 1
_NOTHING: Mapping[str, object] = MappingProxyType({})
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
_DEVICE = torch.ops.prim.device.default
_COPY = torch.ops.aten._to_copy.default
_RESTRIDE = torch.ops.aten.as_strided_.default
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
_QUIET = _Quiet()
logging.getLogger(FakeTensorMode.__module__).addFilter(_QUIET)


@functools.cache
def _keep_device_guard() -> None:
    """What torch puts in the place of the guard of a device that is not there is gone with the
    thread that entered a mode first, and the next one crashes: let it be a thread that stays."""
    found, main = threading.Event(), threading.current_thread() is threading.main_thread()

    def find() -> None:
        torch._C._ensureCUDADeviceGuardSet()
        found.set()
        main or threading.Event().wait()

    find() if main else threading.Thread(target=find, daemon=True).start()
    found.wait()


def _numbered(kwargs: Mapping[str, object]) -> Mapping[str, object]:
    """With the number of the GPU that is current for a device without one: torch remembers results
    by their arguments, and another GPU may be current the next time."""
    device = kwargs["device"]
    unnumbered = isinstance(device, torch.device) and device.type == "cuda" and device.index is None
    if not unnumbered or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return kwargs
    return {**kwargs, "device": torch.device("cuda", torch.cuda.current_device())}


class TorchMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """A fake tensor mode whose symbolic sizes belong to a ``ShapeEnv`` of this package."""

    def __init__(self, shape_env: ShapeEnv | None) -> None:
        # Constants of the traced program are real tensors and may meet fake ones.
        if knows_constructor():
            super(FakeTensorMode, self).__init__()  # type: ignore[no-untyped-call]
            attributes = defaults() | {
                "allow_non_fake_inputs": True,
                "static_shapes": shape_env is None,
            }
            for name, value in attributes.items():
                setattr(self, name, value)
        else:
            super().__init__(allow_non_fake_inputs=True, static_shapes=shape_env is None)
        if self.avoid_device_init:
            _keep_device_guard()
        self._env = shape_env
        self._results = None if shape_env is None else ResultCache(shape_env)
        self._dispatchers: list[contextlib.AbstractContextManager[None]] = []
        if shape_env is not None:
            self.shape_env = shape_env  # type: ignore[assignment]  # see TorchProtocol

    @property
    def _symbolic(self) -> bool:
        return self._env is not None and self._env.has_symbols

    @property
    def cache_enabled(self) -> bool:
        """Torch's cache of results, which looks into torch's own symbolic nodes and needs sympy."""
        return self._cache_enabled and not self._symbolic and "sympy" in sys.modules

    @cache_enabled.setter
    def cache_enabled(self, enabled: bool) -> None:
        self._cache_enabled = enabled

    @functools.cached_property
    def avoid_device_init(self) -> bool:
        """Whether there is no accelerator; torch asks at every operator."""
        return FakeTensorMode.avoid_device_init.fget(self)  # type: ignore[attr-defined,no-any-return]

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> torch.SymInt:
        """The ragged size of jagged tensors that share the same offsets, a number that equals
        itself only."""
        return torch.SymInt(NestedIntNode(next(_RAGGED), 1))  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the method below in a call that imports torch._dynamo

    def dispatch(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] = _NOTHING,
    ) -> object:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        kwargs = kwargs or _NOTHING
        if "device" in kwargs:
            kwargs = _numbered(kwargs)
        if func in _LIFTS and not kwargs and _is_literal(args[0]):
            return self.lift(args[0])  # type: ignore[arg-type]
        if func is _COPY and isinstance(args[0], torch.SymInt):  # what vmap makes of an operand
            with self:
                args = (torch.empty((), dtype=torch.int64), *args[1:])
        if func is _RESTRIDE and not self._symbolic and is_plain(self, args[:1]):
            with in_kernel_invocation_manager(self):
                return func(*args, **kwargs)
        if self._env is not None and self._env.has_unbacked:
            by_data = data_rule(func)
            result = by_data and self._ruled(by_data, args, kwargs)
            if by_data is not None and result is not NotImplemented:
                return result
        entry = entry_of(func)
        if entry is not None:
            result = self._by_rule(entry, args, kwargs)
            if result is NotImplemented and func in _VIEWS and self._symbolic:
                # Torch divides sizes by each other rather than take those that are asked for.
                result = self._by_rule(GUARDED_VIEW, args, kwargs)
            if result is NotImplemented:
                result = self._of_constants(func, entry, args, kwargs)
            if result is not NotImplemented:
                return result
        cache = self._results if self._symbolic else None
        key = None if cache is None else cache.key(self, func, args, kwargs)
        result = NotImplemented if key is None or cache is None else cache.get(self, key)
        if result is NotImplemented:
            with without_dynamo():
                result = super().dispatch(func, types, args, kwargs)
            if self._symbolic and not _writes(func):
                result = settle(self, result)
            if key is not None and cache is not None:
                cache.put(key, result, (*args, *kwargs.values()))
        return result

    __torch_dispatch__ = dispatch

    def lift(self, literal: torch.Tensor) -> FakeTensor:
        """A literal of the program, as torch's mode makes it, but without ``torch._dynamo``."""
        size, stride, dtype = literal.size(), literal.stride(), literal.dtype
        with torch._C._DisableTorchDispatch():
            meta = torch.empty_strided(size, stride, dtype=dtype, device="meta")
            constant = literal.clone() if self.may_turn_const(literal) else None
            fake = wrap(self, meta, literal.device)
            fake.constant = constant
        if constant is not None:
            self.fake_tensor_converter.add_constant_storage_mapping(fake)
        return fake

    def by_rule(
        self, func: OpOverload[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> object:
        """What a call below autograd returns if a layout rule tells, without entering the mode;
        else NotImplemented. A call through torch takes three times as long, and lets other threads
        take the interpreter's lock, which then waits for their next switch."""
        entry = entry_of(func)
        if entry is None or entry.effect is Effect.WRITE or not _only_by_keyword(func, *kwargs):
            return NotImplemented
        return self._by_rule(entry, args, kwargs)

    def _by_rule(self, entry: Entry, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """What an operator with a layout rule returns, or NotImplemented."""
        if self._env is not None and self._env.has_unbacked:
            return NotImplemented  # rules take every symbol to be at least two
        return self._ruled(entry, args, kwargs)

    def _ruled(self, entry: Entry, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        if not all(is_plain(self, part, entry.dtypes) for part in (args, kwargs.values()) if part):
            return NotImplemented
        result = entry.result(args, kwargs)
        if result is None:
            return NotImplemented
        if entry.effect is Effect.WRITE:
            written = args[0] if type(args[0]) in (list, tuple) else args[:1]
            known = any(x.constant is not None for x in written)
            return NotImplemented if known else args[0] if written is not args[0] else None
        base = args[0] if entry.effect is Effect.VIEW else None
        return build(self, result, base, symbolic=self._symbolic)

    def _of_constants(
        self,
        func: OpOverload[..., Any],
        entry: Entry,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> object:
        """What an operator gives for constants: a constant, as under torch's mode, but without its
        detours. NotImplemented for other arguments."""
        given = [*args, *kwargs.values()]
        values = [x.constant if type(x) is FakeTensor else x for x in given]
        tensors = [v for x, v in zip(given, values) if isinstance(x, torch.Tensor)]
        if not tensors or any(type(v) is not torch.Tensor or not v.is_cpu for v in tensors):
            return NotImplemented
        random = torch.Tag.nondeterministic_seeded in func.tags
        if random or entry.effect is Effect.VIEW or any(type(v) in (list, tuple) for v in values):
            return NotImplemented
        if [str(result.type) for result in func._schema.returns] != ["Tensor"]:
            return NotImplemented
        with torch._C._DisableTorchDispatch():
            out = func(*values[: len(args)], **dict(zip(kwargs, values[len(args) :])))
        return args[0] if entry.effect is Effect.WRITE else self.lift(out)

    def __enter__(self) -> Self:
        # With symbolic sizes, operators must take their Python decompositions: the C++ ones ask
        # for the sizes as plain ints, which specialises them.
        dispatcher = enable_python_dispatcher() if self._symbolic else nullcontext()
        dispatcher.__enter__()
        self._dispatchers.append(dispatcher)
        _QUIET.enter(1)
        return super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc, trace)
        _QUIET.enter(-1)
        self._dispatchers.pop().__exit__(exc_type, exc, trace)


def _writes(func: OpOverload[..., Any]) -> bool:
    return bool(func._schema.is_mutable)  # returns its argument, which keeps its identity


@functools.cache
def _only_by_keyword(func: OpOverload[..., Any], *names: str) -> bool:
    """Whether these arguments have no place; torch hands rules those that have by their place."""
    return all(a.kwarg_only for a in func._schema.arguments if a.name in names)


def _is_literal(x: object) -> bool:
    if type(x) is not torch.Tensor or x.layout is not torch.strided:
        return False
    return not (x.is_quantized or x.requires_grad or x.is_conj() or x.is_neg())


agree_with_kernels(lambda x: isinstance(x, FakeTensor) and isinstance(x.fake_mode, TorchMode))
