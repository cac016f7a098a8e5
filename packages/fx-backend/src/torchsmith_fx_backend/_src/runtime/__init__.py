"""Runs plans: compiles the kernels of a ``Plan``, caches them, and builds the callable.

In comes a ``schedule.plan.Plan``, out goes a plain Python function with ``.source`` and
``.kernels``. Read ``graphs.py`` first, then ``launchers.py`` (where a device plugs in),
``native.py`` (C compiler and loader) and ``cache.py``.
"""

from torchsmith_fx_backend._src.runtime.cache import Cache, CacheWarning, default_cache
from torchsmith_fx_backend._src.runtime.cuda_recorder import CudaRecorder
from torchsmith_fx_backend._src.runtime.graphs import CompiledGraph, build, load_graph, save_graph
from torchsmith_fx_backend._src.runtime.halves import RecordedHalves
from torchsmith_fx_backend._src.runtime.launchers import (
    KernelFailedError,
    KernelRequest,
    LoadedKernel,
    Unavailable,
    expect,
    launcher_for,
)
from torchsmith_fx_backend._src.runtime.progress import written_before
from torchsmith_fx_backend._src.runtime.recordings import Recordings, obstacle

__all__ = [
    "Cache",
    "CacheWarning",
    "CompiledGraph",
    "CudaRecorder",
    "KernelFailedError",
    "KernelRequest",
    "LoadedKernel",
    "RecordedHalves",
    "Recordings",
    "Unavailable",
    "build",
    "default_cache",
    "expect",
    "launcher_for",
    "load_graph",
    "obstacle",
    "save_graph",
    "written_before",
]
