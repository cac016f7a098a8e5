"""Bias, GELU and dropout in one pass, forward and backward.

``reference`` is its meaning in plain PyTorch, ``kernel`` the Triton code, ``config`` the tile
sizes, ``op`` the registered operator and the public function; ``pointwise/random.py`` says where
the random numbers are from.
"""
