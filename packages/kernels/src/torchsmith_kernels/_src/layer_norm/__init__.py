"""Layer normalization; ``op`` holds the operator and the public function, ``module`` the module.

Kernels, tile sizes and reference are those of ``row_norm``.
"""
