"""CPython's abstract objects layer (``Objects/abstract.c``) over values.

In: values. Out: values, or the signals ``Unsupported`` and ``ObservedException``. ``layer.py`` puts
the parts together under one name, ``tx.interp``; a part reaches the others by that name only, as
every value does.
"""
