"""Turns Python functions into torch.fx graphs, guards and new bytecode."""

from torchsmith_guards.records import clear_metrics, metrics, set_metrics_limit

from torchsmith_tracer._src.api import (
    allow_in_graph,
    compile,
    disable,
    explain,
    reset,
    substitute_in_graph,
)
from torchsmith_tracer._src.breaks.report import (
    BreakReport,
    FrameReport,
    KernelReport,
    Place,
    Recompile,
)
from torchsmith_tracer._src.explanation import Explanation
from torchsmith_tracer._src.page.traces import trace_page
from torchsmith_tracer._src.regions.backends import backend_names, eager
from torchsmith_tracer._src.regions.stance import set_stance
from torchsmith_tracer._src.settings import Settings
from torchsmith_tracer._src.size_marks import (
    mark_dynamic,
    mark_static,
    mark_unbacked,
    maybe_mark_dynamic,
)

__all__ = [
    "BreakReport",
    "Explanation",
    "FrameReport",
    "KernelReport",
    "Place",
    "Recompile",
    "Settings",
    "allow_in_graph",
    "backend_names",
    "clear_metrics",
    "compile",
    "disable",
    "eager",
    "explain",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "metrics",
    "reset",
    "set_metrics_limit",
    "set_stance",
    "substitute_in_graph",
    "trace_page",
]
