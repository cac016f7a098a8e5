"""Compiles ordinary PyTorch programs: torchsmith.compile(model)."""
