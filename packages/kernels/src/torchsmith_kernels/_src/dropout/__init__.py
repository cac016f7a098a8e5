"""Dropout, forward and backward.

``reference`` is its meaning in plain PyTorch, ``kernel`` the Triton code, ``op`` the registered
operator and the public function; ``pointwise/random.py`` says where the random numbers are from.
"""
