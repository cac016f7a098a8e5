"""Operators whose kernel is right where torch's definition in Python is not.

With symbolic sizes operators take torch's definitions in Python, since those in C++ would ask for
the sizes as plain numbers. Some replace operators that have a kernel and a derivative of their own,
and one of these computes something else than the kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._ops import OpOverload

_AUTOGRAD = torch._C.DispatchKey.Autograd
# Adds up the losses of labels after the first -1, too, which the kernel leaves out.
WRONG_IN_PYTHON = (torch.ops.aten.multilabel_margin_loss_forward.default,)


def prefer_kernels(is_ours: Callable[[object], bool]) -> None:
    """Let operators with a wrong definition in Python run their kernel when ``is_ours`` says so of
    the first argument. For all others torch's table says what it said before."""
    for op in WRONG_IN_PYTHON:
        theirs = op.py_kernels.get(_AUTOGRAD)
        if theirs is not None:
            op.py_kernels[_AUTOGRAD] = _choice(op, theirs, is_ours)
            op._dispatch_cache.clear()


def _choice(
    op: OpOverload, theirs: Callable[..., object], is_ours: Callable[[object], bool]
) -> Callable[..., object]:
    def choose(x: object, *args: object, **kwargs: object) -> object:
        if not is_ours(x):
            return theirs(x, *args, **kwargs)
        with torch._C._DisablePythonDispatcher():
            return op(x, *args, **kwargs)

    return choose
