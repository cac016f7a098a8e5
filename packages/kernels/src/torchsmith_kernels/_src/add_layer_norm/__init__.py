"""Layer normalization after a residual addition; ``op`` holds the operator and the function.

Kernels, tile sizes and reference are those of ``row_norm``.
"""
