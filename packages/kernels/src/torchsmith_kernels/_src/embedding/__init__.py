"""Embedding lookup, forward and backward, without atomics.

``reference`` is its meaning in plain PyTorch, ``kernel`` the Triton code, ``run`` the stages of the
backward pass, ``config`` the tile sizes, ``op`` the registered operators and the public function.
Read ``run.py`` first.
"""
