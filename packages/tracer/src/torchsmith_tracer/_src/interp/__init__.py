"""The symbolic interpreter: runs decoded frames on values.

In: a ``Frame`` and the ``Trace``. Out: the returned value, or ``BreakAt`` with the chain of frames
at the instruction that could not be traced. Read ``interpreter.py``, then ``registry.py`` and the
opcode files, one for each theme; ``values/abstract/`` has CPython's
abstract objects layer, which they call.
"""
