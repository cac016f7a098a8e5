"""SwiGLU, ``silu(gate) * up``, forward and backward; kernels and reference are in ``gated``."""
