"""Loop IR kernel -> Triton source text.

``kernel.generate`` is the entry: a ``Kernel`` and a ``Config`` go in, a ``TritonSource`` (module text
plus what a launcher must know: parameters, grid, workspaces) comes out. ``config.choose`` picks the
schedule and the tile sizes, ``index`` prints and measures index expressions, ``scalars`` prints one
scalar operation, ``functions`` holds the functions that generated kernels call. Read ``kernel.py`` first.
"""
