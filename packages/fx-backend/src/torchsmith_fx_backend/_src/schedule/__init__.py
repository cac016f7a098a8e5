"""Scheduling: which nodes share a kernel, in which order kernels run, and where results live.

In: a functional aten graph. Out: a ``Plan``. Read ``plan.py`` first, then ``fuse.py`` (fusion) and
``memory.py`` (buffers); ``facts.py`` answers questions about the graph.
"""

from torchsmith_fx_backend._src import loops  # importing it registers the lowerings
from torchsmith_fx_backend._src.schedule.scheduler import schedule_graph

assert loops

__all__ = ["schedule_graph"]
