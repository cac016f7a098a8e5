"""GeGLU, ``gelu(gate) * up``, forward and backward; kernels and reference are in ``gated``."""
