"""Facts about inputs as data, and the checkers generated from them.

In: ``Guard`` values in a ``GuardSet``. Out: a ``Checker``, one generated Python function.
Read ``guard.py`` first, then ``codegen.py``.
"""
