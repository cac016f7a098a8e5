"""Compiles ordinary PyTorch programs: ``model = torchsmith.compile(model)``.

The front door with everything installed: the tracer's ``compile`` and ``explain`` with the
``smith`` backend as their default, and the backend's ``make_fx``.
"""

from torchsmith_fx_backend import make_fx

from torchsmith._src.frontdoor import compile, explain, reset

__all__ = ["compile", "explain", "make_fx", "reset"]
__version__ = "0.1.0"
