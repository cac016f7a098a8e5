"""Softmax and log-softmax along any dimension, masked and scaled, forward and backward.

``reference`` is their meaning in plain PyTorch, ``kernel`` the Triton code, ``config`` the tile
sizes, ``run`` chooses between the kernels, ``op`` has the registered operators and the public
functions. Read ``reference.py`` first.
"""
