"""Records of what was compiled: types, the process's recorder, trace files and tables."""

from torchsmith_guards._src.records.metrics import Metrics, report
from torchsmith_guards._src.records.recorder import DEBUG_VARIABLE, Recorder, recorder
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
    "DEBUG_VARIABLE",
    "FrameRecord",
    "GraphRecord",
    "KernelRecord",
    "Metrics",
    "Phase",
    "ProcessTrace",
    "RecompileReason",
    "Recorder",
    "TraceWarning",
    "read_trace",
    "recompiles",
    "recorder",
    "report",
    "spent_on",
    "table",
]
