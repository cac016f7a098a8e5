"""What builtin callables do, found by identity: functions, class constructors, methods.

In: the callable and its argument values. Out: a value, or None when the general rules (fold, ask
the arguments, break) should decide. Read ``registry.py`` first.
"""
