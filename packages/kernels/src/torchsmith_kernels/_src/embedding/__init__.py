"""Embedding lookup, forward and backward, without atomics.

``reference`` is its meaning in plain PyTorch, ``kernel`` the Triton code, ``run`` the launches,
``config`` the tile sizes, ``op`` the registered operators and the public function. Gradients are
sums of rows by index, those of ``sum_rows``. Read ``run.py`` first.
"""
