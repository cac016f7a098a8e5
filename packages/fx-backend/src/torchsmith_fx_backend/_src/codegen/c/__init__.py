"""Prints kernels as C11.

In comes a ``loops.ir.Kernel``, out goes the text of a C function, and of the file that holds all
functions of a graph. Read ``kernel.py`` first, then the schedules: ``pointwise.py``, ``inner.py``
and ``outer.py``.
"""

from torchsmith_fx_backend._src.codegen.c.kernel import Parameter, kernel_function, parameters
from torchsmith_fx_backend._src.codegen.c.unit import Function, unit

__all__ = ["Function", "Parameter", "kernel_function", "parameters", "unit"]
