"""Facts: how a trace learns about objects that exist outside of it.

In come an object and where it was found; out go what it holds and a guard that this still holds at
the next call. Read ``world.py`` first.
"""
