"""Compiles ordinary PyTorch programs: ``model = torchsmith.compile(model)``.

The front door with everything installed: the tracer's ``compile`` and ``explain`` with the
``smith`` backend as their default, the marks that steer them, and the backend's ``make_fx``.
"""

import gc

from torchsmith_guards import collector

with collector.paused():  # a full pass in the middle of an import finds nothing
    from torchsmith_fx_backend import make_fx
    from torchsmith_tracer import (
        allow_in_graph,
        clear_metrics,
        disable,
        mark_dynamic,
        mark_static,
        mark_unbacked,
        maybe_mark_dynamic,
        metrics,
        set_metrics_limit,
        set_stance,
        substitute_in_graph,
    )

    from torchsmith._src.frontdoor import compile, explain, reset
    from torchsmith._src.testing.same import same

    if not gc.get_freeze_count():  # else what somebody else froze would thaw
        gc.freeze()  # what was imported stays: passes over young objects would walk it twice
        gc.unfreeze()  # into the oldest generation

__all__ = [
    "allow_in_graph",
    "clear_metrics",
    "compile",
    "disable",
    "explain",
    "make_fx",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "metrics",
    "reset",
    "same",
    "set_metrics_limit",
    "set_stance",
    "substitute_in_graph",
]
__version__ = "0.1.0"
