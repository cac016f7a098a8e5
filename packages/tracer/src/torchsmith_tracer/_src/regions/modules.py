"""``compile(module)``: an object that is the module for every purpose, with a compiled call.

The wrapper is an instance of a subclass made for it that shares the module's ``__dict__``: one set
of parameters, buffers, submodules, hooks and flags, seen from both sides. Copying and pickling
give the original kind of object.
"""

from __future__ import annotations

import copy
import types
from typing import Any, TypeVar

import torch

from torchsmith_tracer._src import marks
from torchsmith_tracer._src.regions.region import Region

_M = TypeVar("_M", bound=torch.nn.Module)


def wrap_module(region: Region, module: _M) -> _M:
    """The compiled form of ``module``.

    Raises:
        TypeError: instances of its class have ``__slots__`` besides their dict, or a metaclass
            refuses subclasses, so the state cannot be shared.
    """
    kind = type(module)
    call = kind.__call__
    if not isinstance(call, types.FunctionType):
        raise TypeError(f"{kind.__name__}.__call__ is not a Python function")
    record = region.record(call, kind)
    record.calls_modules = True
    namespace: dict[str, Any] = {
        "__call__": staticmethod(record.dispatcher(call, module, follows="class")),
        "__reduce_ex__": lambda self, protocol: module.__reduce_ex__(protocol),
        "__deepcopy__": lambda self, memo: copy.deepcopy(module, memo),
        "__copy__": lambda self: copy.copy(module),
        "_replicate_for_data_parallel": lambda self: wrap_module(
            region,
            module._replicate_for_data_parallel(),  # type: ignore[no-untyped-call]
        ),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "__slots__": (),
        # Torch changes the classes of modules (lazy ones, parametrizations): the original's counts.
        "__class__": property(lambda self: type(module)),
        # ``_orig_mod`` is no property, which ``torch.jit.script`` would compile.
        "__getattr__": lambda self, name: module if name == "_orig_mod" else getattr(module, name),
        "__setattr__": lambda self, name, value: _set(self, module, name, value),
        "__delattr__": lambda self, name: delattr(module, name),
        "_torchsmith_region": region,
        marks.ORIGINAL: module,
    }
    subclass = types.new_class(kind.__name__, (kind,), exec_body=lambda ns: ns.update(namespace))
    out: _M = object.__new__(subclass)
    object.__setattr__(out, "__dict__", module.__dict__)
    return out


def _set(wrapper: torch.nn.Module, module: torch.nn.Module, name: str, value: object) -> None:
    setattr(module, name, value)
    if name == "__dict__":  # still one for both
        object.__setattr__(wrapper, name, value)
