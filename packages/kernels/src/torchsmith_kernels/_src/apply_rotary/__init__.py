"""Rotary position embedding of queries and keys, half and interleaved, in place and not.

``reference`` is its meaning in plain PyTorch, ``kernel`` the Triton code, ``config`` the tile
sizes, ``op`` the registered operators and the public function. Read ``reference.py`` first.
"""
