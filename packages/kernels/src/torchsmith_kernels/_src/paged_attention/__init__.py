"""Attention of one new token per sequence over a paged key/value cache.

``reference`` is its meaning in plain PyTorch, ``kernel`` the Triton code, ``config`` tile sizes and
the number of splits, ``op`` the registered operator and the public function. Read ``reference.py``
first.
"""
