"""Kernels measured in several configurations, the fastest kept: what ``max-autotune`` asks for.

In: the kernels of a plan, with the sizes of a launch (``workload.py``). Out: the same requests with
the configuration that won, and what to tell of it (``records.choices``). ``tuner.py`` measures and
remembers, ``stopwatch.py`` is the device. Read ``tuner.py`` first.
"""
