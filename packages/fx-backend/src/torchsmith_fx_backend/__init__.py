"""make_fx, loop IR, fusion, C and Triton code generation for torch.fx graphs."""

from torchsmith_fx_backend._src.capture.make_fx import make_fx
from torchsmith_fx_backend._src.driver import Compiled, compile_graph, smith
from torchsmith_fx_backend._src.repro import on_failure
from torchsmith_fx_backend._src.settings import Settings
from torchsmith_fx_backend._src.switches import SWITCHES

__all__ = ["SWITCHES", "Compiled", "Settings", "compile_graph", "make_fx", "on_failure", "smith"]
