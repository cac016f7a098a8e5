"""Squared ReLU, forward and backward.

``reference`` is its meaning in plain PyTorch, ``kernel`` the Triton code, ``config`` the tile
sizes, ``op`` the registered operator and the public function. Read ``reference.py`` first.
"""
