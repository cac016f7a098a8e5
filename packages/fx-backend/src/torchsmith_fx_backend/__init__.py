"""make_fx, loop IR, fusion, C and Triton code generation for torch.fx graphs."""

import importlib
from typing import TYPE_CHECKING

from torchsmith_fx_backend._src.backend import Compiled, compile_graph, smith
from torchsmith_fx_backend._src.capture.make_fx import make_fx
from torchsmith_fx_backend._src.repro import on_failure
from torchsmith_fx_backend._src.settings import Settings

if TYPE_CHECKING:
    from torchsmith_fx_backend._src.switches import SWITCHES

__all__ = ["SWITCHES", "Compiled", "Settings", "compile_graph", "make_fx", "on_failure", "smith"]


def __getattr__(name: str) -> object:
    if name != "SWITCHES":  # named after all passes, which graphs from the cache do not need
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}._src.switches").SWITCHES
