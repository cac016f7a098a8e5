"""Gated activations, ``activation(gate) * up``: what ``swiglu`` and ``geglu`` share.

``reference`` is the meaning in plain PyTorch, ``kernel`` the Triton code, ``run`` launches it and
``tuning`` says how it is tuned; the operators are in the two ops' own folders.
"""
