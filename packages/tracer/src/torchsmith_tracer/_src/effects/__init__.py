"""Side effects of traced code: recorded while tracing, replayed after the graph has run.

In: stores and container changes that the interpreter makes on values. Out: statements in the body
that bring the caller's real objects up to date, in the order of first change.
Read ``journal.py`` first, then ``replay.py``.
"""
