"""Attention that never stores the scores, forward and backward.

``reference`` is its meaning in plain PyTorch, ``kernel_forward`` and ``kernel_backward`` the Triton
code around the changes of a score in ``scores``; on Hopper plain calls with a head dimension of 128
take ``kernel_hopper``. ``config`` has the tile sizes, ``run_*`` launch, ``plans`` keep launches,
``operators`` is what is registered and ``op`` the public function. Read ``reference.py`` first.
"""
