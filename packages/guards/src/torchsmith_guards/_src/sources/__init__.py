"""How to fetch an object again: paths that start at the arguments, globals or the function.

In: what the tracer knows about where an object came from. Out: hashable ``Source`` values that
print as Python. Read ``sources.py`` first.
"""
