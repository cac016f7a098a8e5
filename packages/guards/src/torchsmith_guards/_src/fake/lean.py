"""Torch's fake mode without the import of ``torch._dynamo``, which takes about a second.

``FakeTensorMode`` needs that package for settings only: its constructor reads two, and each
operator reads ``torch._dynamo.config._custom_ops_profile``. ``defaults`` gives the attributes that
the constructor sets; ``knows_constructor`` says whether they are all that it sets. While torch
works on an operator, ``without_dynamo`` answers the one read as long as the package is not loaded.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode

_PACKAGE = "torch._dynamo"
_ATTRIBUTE = "_dynamo"
_COUNTERS = "torch.nested._internal.nested_tensor"


def defaults() -> dict[str, Any]:
    """The attributes of a new mode at torch's default settings."""
    counter = getattr(sys.modules.get(_COUNTERS), "_tensor_id_counter", 0)
    return {
        "allow_fallback_kernels": True,
        "propagate_real_tensors": False,
        "fake_tensor_converter": FakeTensorConverter(copy_data=False, export=False),
        "static_shapes": True,
        "allow_scalar_outputs": False,
        "_allow_unsafe_data_ptr_access": True,
        "allow_meta": os.environ.get("FAKE_ALLOW_META", "1") != "0",
        "cache_enabled": True,
        "cache_crosscheck_enabled": False,
        "allow_non_fake_inputs": False,
        "in_kernel_invocation": False,
        "enter_stack": [],
        "shape_env": None,
        "_stack_trace": traceback.StackSummary(),
        "_stack": None,
        "_mode_key": torch._C._TorchDispatchModeKey.FAKE,
        "nt_tensor_id_initial_count": counter,
        "nt_tensor_id_counter": counter,
    }


@functools.cache
def knows_constructor() -> bool:
    """Whether torch's constructor sets no attribute that is unknown here."""
    instructions = dis.get_instructions(FakeTensorMode.__init__)
    stored = {i.argval for i in instructions if i.opname == "STORE_ATTR"}
    return bool(stored) and stored <= defaults().keys()


class _StandIn:
    """Answers for a module that is not loaded; anything but ``known`` loads the module."""

    __slots__ = ("_known", "_name")

    def __init__(self, name: str, known: dict[str, object]) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_known", known)

    def __getattr__(self, name: str) -> object:
        known: dict[str, object] = object.__getattribute__(self, "_known")
        module = object.__getattribute__(self, "_name")
        if name in known and module not in sys.modules:
            return known[name]
        return getattr(_load(module), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_load(object.__getattribute__(self, "_name")), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_load(object.__getattribute__(self, "_name")), name)

    def __dir__(self) -> list[str]:
        return dir(_load(object.__getattribute__(self, "_name")))


_STAND_IN = _StandIn(
    _PACKAGE, {"config": _StandIn(f"{_PACKAGE}.config", {"_custom_ops_profile": None})}
)


def _load(name: str) -> object:
    _remove()  # modules of the package find it as an attribute of torch while it is loading
    return importlib.import_module(name)


def _remove() -> None:
    if vars(torch).get(_ATTRIBUTE) is _STAND_IN:
        vars(torch).pop(_ATTRIBUTE, None)


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """Let torch read settings of ``torch._dynamo`` without loading it.

    The stand-in is there inside the block only, and not when the package is loaded. Code that runs
    inside and uses the package for anything else gets the real one.
    """
    if _PACKAGE in sys.modules or _ATTRIBUTE in vars(torch):
        yield
        return
    vars(torch)[_ATTRIBUTE] = _STAND_IN
    try:
        yield
    finally:
        _remove()
