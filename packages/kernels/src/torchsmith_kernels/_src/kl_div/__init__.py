"""The Kullback-Leibler divergence, and what it shares with the Jensen-Shannon divergence.

``reference`` is its meaning in plain PyTorch, ``kernel`` the Triton code of both divergences,
``config`` the tile sizes, ``run`` lays out and launches, ``op`` has the registered operators and
the public function. Read ``reference.py`` first.
"""
