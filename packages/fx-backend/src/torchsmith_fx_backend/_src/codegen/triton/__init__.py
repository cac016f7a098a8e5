"""Loop IR kernel -> Triton source text.

``kernel.generate`` is the entry: a ``Kernel`` and a ``Config`` go in, a ``TritonSource`` (module
text plus what a launcher must know: parameters, grid, workspaces) comes out. ``config.choose``
picks the schedule and the tile sizes, ``emit`` prints what schedules share, ``pointwise`` and
``reduction`` print the schedules, ``scalars`` one scalar operation; ``functions`` holds what
generated kernels call. Read ``kernel.py`` first.
"""
