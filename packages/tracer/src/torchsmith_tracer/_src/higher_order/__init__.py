"""Functions that take functions: ``vmap``, ``grad`` and their kin, ``cond``.

In comes a traced function and its operands; the function's body is traced into the graph and then
outlined into a graph of its own (``graph/outline.py``), and one node that holds it takes its place.
Read ``ops.py`` first: it is what those nodes call when the graph runs.
"""
