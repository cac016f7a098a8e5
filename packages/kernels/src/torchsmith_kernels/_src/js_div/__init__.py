"""The generalized Jensen-Shannon divergence, on the kernels of ``kl_div``.

``reference`` is its meaning in plain PyTorch, ``op`` has the registered operators and the public
function; kernels, launches and tile sizes are those of ``kl_div``.
"""
