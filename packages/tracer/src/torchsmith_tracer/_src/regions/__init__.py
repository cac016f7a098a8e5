"""Owners of compiled code: what ``compile`` returns, and how calls find their compiled version.

In: a user's callable. Out: a dispatcher with the user's own signature whose misses go through
``compile_frame``; generated code comes back here for callees below a graph break.
Read ``region.py`` first, then ``dispatcher.py`` and ``compile_frame.py``.
"""
