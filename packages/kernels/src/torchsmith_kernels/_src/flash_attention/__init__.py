"""Attention that never stores the scores, forward and backward.

``reference`` is its meaning in plain PyTorch, ``kernel_forward`` and ``kernel_backward`` the Triton
code around the changes of a score in ``scores``, ``config`` the tile sizes, ``operators``
what is registered and ``op`` the public function. Read ``reference.py`` first.
"""
