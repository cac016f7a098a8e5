"""CPython's abstract objects layer (``Objects/abstract.c``) over values.

In: values. Out: values, or the signals ``Unsupported`` and ``ObservedException``. ``layer.py`` puts
the parts together under one name, ``tx.interp``; each part is an object of its own that is handed
the trace, and reaches the others as every value does.
"""
