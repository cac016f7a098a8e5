"""Code objects and activation records, decoded once for the interpreter.

In: a ``types.CodeType``. Out: ``CodeInfo`` (instructions, jump targets, exception table, liveness)
and ``Frame``, the mutable state of one activation. Read ``code.py`` first, then ``frame.py``.
"""
