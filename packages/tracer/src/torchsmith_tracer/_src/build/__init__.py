"""From real objects to symbolic values.

In: an object and the source where it was found. Out: a ``Value``, with guards and graph inputs as
needed. Read ``builder.py`` first, then ``dynamic.py`` (which sizes become symbolic).
"""
