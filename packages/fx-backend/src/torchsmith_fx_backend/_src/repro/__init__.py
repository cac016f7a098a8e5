"""Who is told of failures of the compiler: callables of the graph as captured and the error.

The user's program goes on after a failure, so whoever records it hears of it here.
"""

from torchsmith_fx_backend._src.repro.failures import on_failure, report_failure

__all__ = ["on_failure", "report_failure"]
