"""Operators whose kernel is another thing than torch's definition of them in Python.

With symbolic sizes operators take torch's definitions in Python, since those in C++ would ask for
the sizes as plain numbers. Some replace operators that have a kernel and a derivative of their own,
and a few of these compute something else than the kernel, or lay it out otherwise, or take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torchsmith_guards._src.fake.layouts.base import is_static

_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
_aten = torch.ops.aten
# Adds up the losses of labels after the first -1, too, which the kernel leaves out.
WRONG_IN_PYTHON = (_aten.multilabel_margin_loss_forward.default,)
# Keep the order of their input's axes where the kernel's result is row-major.
ORDERED_IN_PYTHON = tuple(
    getattr(getattr(_aten, name), overload)
    for name in ("upsample_nearest1d", "_upsample_nearest_exact1d")
    for overload in ("default", "vec")
)
# Scatters four gradients of each element by index. Where all sizes but the batch are numbers, there
# are rules for the kernels on a CPU.
SLOW_IN_PYTHON = (_aten.upsample_bilinear2d.default, _aten.upsample_bilinear2d.vec)
_Function = Callable[..., Any]


def agree_with_kernels(is_ours: Callable[[object], bool]) -> None:
    """Let these operators give what their kernel does where ``is_ours`` says so of the first
    argument. For all others torch's table says what it said before."""
    mends = (WRONG_IN_PYTHON, _kernel), (ORDERED_IN_PYTHON, _row_major), (SLOW_IN_PYTHON, _planes)
    for operators, mend in mends:
        for op in operators:
            for key in _KEYS:
                theirs = op.py_kernels.get(key)
                if theirs is not None:
                    op.py_kernels[key] = _choice(theirs, mend(op, theirs), is_ours)
            op._dispatch_cache.clear()


def _choice(theirs: _Function, ours: _Function, is_ours: Callable[[object], bool]) -> _Function:
    return lambda x, *args, **kwargs: (ours if is_ours(x) else theirs)(x, *args, **kwargs)


def _kernel(op: OpOverload[..., Any], theirs: _Function) -> _Function:
    def run(*args: object, **kwargs: object) -> object:
        with torch._C._DisablePythonDispatcher():
            return op(*args, **kwargs)

    return run


def _planes(op: OpOverload[..., Any], theirs: _Function) -> _Function:
    kernel = _kernel(_aten.upsample_bilinear2d.default, theirs)

    def run(x: torch.Tensor, size: Sequence[Any] | None, corners: bool, *scales: Any) -> object:
        known = x.device.type == "cpu" and is_static(x.shape[1:], x.stride(), size or ())
        if not known or not x.requires_grad:
            return theirs(x, size, corners, *scales)
        if op is _aten.upsample_bilinear2d.vec:  # the one in C++ asks for all sizes
            scales = (None, None) if scales[0] is None else tuple(scales[0])
            size = size or [int(n * scale) for n, scale in zip(x.shape[2:], scales)]
        return kernel(x, size, corners, *scales)

    return run


def _row_major(op: OpOverload[..., Any], theirs: _Function) -> _Function:
    return lambda *args, **kwargs: theirs(*args, **kwargs).contiguous()
