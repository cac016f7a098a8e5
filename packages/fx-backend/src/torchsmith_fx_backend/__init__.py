"""make_fx, loop IR, fusion, C and Triton code generation for torch.fx graphs."""

from torchsmith_fx_backend._src.capture.make_fx import make_fx

__all__ = ["make_fx"]
