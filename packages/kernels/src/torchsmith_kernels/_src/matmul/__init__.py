"""Matrix product with a fused epilogue, forward and backward.

``reference`` is its meaning in plain PyTorch, ``kernel`` and ``persistent`` the Triton code,
``config`` the choice of kernel and tile sizes, ``op`` the registered operator and the public
function, ``epilogue`` the compilers' way in. Read ``reference.py`` first.
"""
