"""Runs plans: compiles the kernels of a ``Plan``, caches them, and builds the callable.

In comes a ``schedule.plan.Plan``, out goes a plain Python function with ``.source`` and
``.kernels``. Read ``build.py`` first and ``graphs.py``, then ``launchers.py`` (where a device plugs
in), ``native.py`` (C compiler and loader) and ``cache.py``. Graphs from
the cache need neither loop IR nor code generation.
"""
