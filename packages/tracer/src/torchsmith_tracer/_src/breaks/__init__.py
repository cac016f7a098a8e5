"""Graph breaks as an API: one registry of kinds, one report object, one place to look.

In: ``Unsupported`` signals and the frames in which they arose. Out: reports with id, place,
category and advice, which ``explain`` lists and ``fullgraph=True`` raises.
Read ``kinds.py`` for the registry, ``signals.py`` for what tracing raises, then ``report.py``.
"""
