"""What the backend tells about each graph that it compiles.

In: a plan and what was built from it, or what the cache keeps of them. Out: the fields of a
``GraphRecord`` of ``torchsmith_guards.records``. Read ``graphs.py``.
"""
