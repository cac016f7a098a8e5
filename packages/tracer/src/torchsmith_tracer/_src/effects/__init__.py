"""Side effects of traced code: recorded while tracing.

In: stores and container changes that the interpreter makes on values. Out: the journal, from which
``codegen/replay.py`` writes statements that bring the caller's real objects up to date, and copies
of what a graph that fails has to put back (``undo.py``).
"""
