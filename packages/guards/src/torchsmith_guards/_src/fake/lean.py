"""Construction of ``FakeTensorMode`` without importing torch's compile stack.

Its own ``__init__`` imports ``torch._dynamo`` (about a second) only to read settings. The subclass
here sets the same attributes with the settings' defaults. For a torch release whose constructor
has other attributes than the ones known here, it falls back to that constructor.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode

if TYPE_CHECKING:
    from torchsmith_guards._src.shapes.env import ShapeEnv


def _settings(shape_env: ShapeEnv | None) -> dict[str, Any]:
    """The attributes of a mode, at torch's default settings."""
    return {
        "allow_fallback_kernels": True,
        "propagate_real_tensors": False,
        "fake_tensor_converter": FakeTensorConverter(copy_data=False, export=False),
        "static_shapes": shape_env is None,
        "allow_scalar_outputs": False,
        "_allow_unsafe_data_ptr_access": True,
        "allow_meta": False,
        # The cache reaches into nodes, and its keys would mix up two environments.
        "cache_enabled": shape_env is None,
        "cache_crosscheck_enabled": False,
        # Constants of the traced program are real tensors.
        "allow_non_fake_inputs": True,
        "in_kernel_invocation": False,
        "enter_stack": [],
        "shape_env": shape_env,
        "_stack_trace": traceback.StackSummary(),
        "_stack": "",
        "_mode_key": torch._C._TorchDispatchModeKey.FAKE,
        "nt_tensor_id_initial_count": 0,
        "nt_tensor_id_counter": 0,
    }


class _LeanMode(FakeTensorMode):
    """A ``FakeTensorMode`` with the default settings and a shape environment of ours."""

    def __init__(self, shape_env: ShapeEnv | None) -> None:
        super(FakeTensorMode, self).__init__()
        for name, value in _settings(shape_env).items():
            setattr(self, name, value)
        self._dispatchers: list[contextlib.AbstractContextManager[None]] = []

    def __enter__(self) -> Self:
        # With symbolic sizes, operators must take their Python decompositions: the C++ ones ask
        # for the sizes as plain ints, which specialises them.
        dispatcher = nullcontext() if self.static_shapes else enable_python_dispatcher()
        dispatcher.__enter__()
        self._dispatchers.append(dispatcher)
        return super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc, trace)
        self._dispatchers.pop().__exit__(exc_type, exc, trace)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the method below in a call that imports the stack

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return self.dispatch(func, types, args, kwargs or {})


@functools.cache
def _knows_constructor() -> bool:
    """True when torch's constructor sets no attribute that is unknown here."""
    stored = {
        i.argval
        for i in dis.get_instructions(FakeTensorMode.__init__)
        if i.opname == "STORE_ATTR"
    }
    return stored <= _settings(None).keys()


def make_mode(shape_env: ShapeEnv | None) -> FakeTensorMode:
    """A new fake tensor mode over ``shape_env`` (None: static shapes)."""
    if _knows_constructor():
        return _LeanMode(shape_env)
    mode = FakeTensorMode(allow_non_fake_inputs=True, static_shapes=shape_env is None)
    mode.shape_env = shape_env  # type: ignore[assignment]  # duck-typed, see TorchProtocol
    mode.cache_enabled = shape_env is None
    return mode
