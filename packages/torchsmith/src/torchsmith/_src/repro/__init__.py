"""What finds out where a compiled program goes wrong.

In comes a graph or a program, out comes a verdict on its results, the stage at fault, or a small
file that fails alone. Read ``same.py`` first (is this result right?), then ``clones.py`` (how to
run a thing twice on the same inputs) and ``verify.py`` (both, for a compiled graph).
"""
