"""Group norm, forward and backward, for contiguous and channels-last tensors.

``reference`` is its meaning in plain PyTorch, ``kernel`` the Triton code where one program owns a
group, ``tiles`` that where a group is shared by several, ``config`` the tile sizes, ``run`` the
choice between them, ``op`` the registered operators and the public function. Read ``reference.py``
first.
"""
