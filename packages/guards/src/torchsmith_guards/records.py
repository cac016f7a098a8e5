"""Records of what was compiled: types, the process's recorder, trace files and tables."""

from torchsmith_guards._src.records import printing
from torchsmith_guards._src.records.debug_folder import debug_folder, write_crash
from torchsmith_guards._src.records.graphs import (
    graph_text,
    new_graph,
    node_line,
    note_compiled,
    tell_sizes,
)
from torchsmith_guards._src.records.metrics import Metrics, report
from torchsmith_guards._src.records.recorder import (
    Recorder,
    clear_metrics,
    metrics,
    recorder,
    set_metrics_limit,
)
from torchsmith_guards._src.records.rows import (
    FrameRecord,
    GraphRecord,
    KernelRecord,
    Phase,
    RecompileReason,
)
from torchsmith_guards._src.records.tables import recompiles, spent_on, table
from torchsmith_guards._src.records.trace_file import ProcessTrace, TraceWarning, read_trace

__all__ = [
    "FrameRecord",
    "GraphRecord",
    "KernelRecord",
    "Metrics",
    "Phase",
    "ProcessTrace",
    "RecompileReason",
    "Recorder",
    "TraceWarning",
    "clear_metrics",
    "debug_folder",
    "graph_text",
    "metrics",
    "new_graph",
    "node_line",
    "note_compiled",
    "printing",
    "read_trace",
    "recompiles",
    "recorder",
    "report",
    "set_metrics_limit",
    "spent_on",
    "table",
    "tell_sizes",
    "write_crash",
]
