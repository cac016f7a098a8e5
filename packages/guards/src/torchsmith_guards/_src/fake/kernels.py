"""Operators whose kernel gives something else than torch's definition of them in Python.

With symbolic sizes operators take torch's definitions in Python, since those in C++ would ask for
the sizes as plain numbers. Some replace operators that have a kernel and a derivative of their own,
and a few of these compute something else than the kernel, or lay it out otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

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
_Function = Callable[..., Any]


def agree_with_kernels(is_ours: Callable[[object], bool]) -> None:
    """Let these operators give what their kernel does where ``is_ours`` says so of the first
    argument. For all others torch's table says what it said before."""
    for operators, mend in ((WRONG_IN_PYTHON, _kernel), (ORDERED_IN_PYTHON, _row_major)):
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


def _row_major(op: OpOverload[..., Any], theirs: _Function) -> _Function:
    return lambda *args, **kwargs: theirs(*args, **kwargs).contiguous()
