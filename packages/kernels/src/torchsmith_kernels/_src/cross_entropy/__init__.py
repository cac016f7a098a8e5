"""Cross entropy over the last dimension, forward and backward.

``reference`` is its meaning in plain PyTorch, ``kernel`` the Triton code, ``config`` the tile
sizes, ``run`` the launches, ``op`` the registered operators, ``functional`` the public function
with its many forms of input. Read ``reference.py`` first.
"""
