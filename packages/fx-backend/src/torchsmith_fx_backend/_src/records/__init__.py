"""What the backend tells about each graph that it compiles.

In: a plan and what was built from it, or what the cache keeps of them. Out: the fields of a
``GraphRecord`` of ``torchsmith_guards.records``, and texts: plans, kernels, and the choices that
measuring made. Read ``graphs.py``.
"""
