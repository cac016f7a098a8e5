"""Normalization of rows, shared by RMS norm, layer norm and both after a residual addition.

``reference`` is the meaning in plain PyTorch, ``kernel`` the Triton code, ``run`` prepares its
launches with the tile sizes of ``config``, ``op`` holds what the operators have in common. The
operators and public functions are in the folders of their names. Read ``reference.py`` first.
"""
