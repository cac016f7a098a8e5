"""``GraphRecord`` of an fx graph: made before its backend runs, filled in by who knows more."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from torch import fx

from torchsmith_guards._src.records.printing import runnable
from torchsmith_guards._src.records.recorder import recorder
from torchsmith_guards._src.records.rows import FrameRecord, GraphRecord, KernelRecord


def new_graph(
    gm: fx.GraphModule,
    backend: str,
    inputs: Sequence[object] = (),
    *,
    kind: str = "inference",
    compile_id: str = "",
) -> GraphRecord:
    """The record of one compile of ``gm`` for ``inputs``; ``compile_id``: where no frame is under
    way."""
    told = GraphRecord(recorder.graph_id(), compile_id, kind, type(gm).__name__, backend)
    with recorder.safely("a record"):
        tell_sizes(told, gm.graph)
        if recorder.detailed:
            told.texts["graph"] = graph_text(gm.graph)
            if recorder.debugging:
                title = f"Graph {told.graph_id} for backend {backend}, as captured."
                told.texts["graph.py"] = runnable(gm, inputs, title)
            lines = ((n.name, node_line(n)) for n in gm.graph.nodes)
            told.lines = {name: line for name, line in lines if line is not None}
    return told


def graph_text(graph: fx.Graph) -> str:
    """A line for each node, as Python would call it; ``graph.python_code`` takes 20 times as long,
    which a trace may not."""
    lines = [f"def forward({', '.join(n.name for n in graph.nodes if n.op == 'placeholder')}):"]
    for node in graph.nodes:
        if node.op == "output":
            lines.append(f"    return {node.args[0]!r}")
        elif node.op == "get_attr":
            lines.append(f"    {node.name} = self.{node.target}")
        elif node.op != "placeholder":
            given = [repr(x) for x in node.args] + [f"{k}={v!r}" for k, v in node.kwargs.items()]
            if node.op == "call_method":
                name = f"{given.pop(0)}.{node.target}"
            else:
                name = _called(node.target) if node.op == "call_function" else f"self.{node.target}"
            lines.append(f"    {node.name} = {name}({', '.join(given)})")
    return "\n".join(lines) + "\n"


def _called(target: object) -> str:
    text = str(target)
    if not text.startswith("<"):
        return f"torch.ops.{text}"  # an operator's name is its text
    module = getattr(target, "__module__", None) or "torch"
    return f"{module.removeprefix('_')}.{getattr(target, '__name__', target)}"


def tell_sizes(told: FrameRecord | GraphRecord, graph: fx.Graph) -> None:
    """How many nodes, calls, inputs and outputs ``graph`` has."""
    nodes = list(graph.nodes)
    told.nodes = len(nodes)
    told.ops = sum(n.op.startswith("call") for n in nodes)
    told.inputs = sum(n.op == "placeholder" for n in nodes)
    returned = nodes[-1].args[0] if nodes and nodes[-1].op == "output" else ()
    told.outputs = len(returned) if isinstance(returned, tuple | list) else 1


def note_compiled(told: GraphRecord, compiled: object) -> None:
    """What a compiled callable says of itself, where its backend has not told more."""
    told.outcome = told.outcome or "compiled"
    if told.kernels:
        return
    with recorder.safely("a record"):
        names = getattr(compiled, "kernels", ())
        found: Iterable[object] = names() if callable(names) else names
        told.kernels = tuple(
            KernelRecord(str(k[0]), source=str(k[1]) if recorder.detailed else "")
            if isinstance(k, tuple)
            else KernelRecord(str(k))
            for k in found
        )
        if recorder.detailed and "wrapper" not in told.texts:
            told.texts["wrapper"] = str(getattr(compiled, "source", ""))


def node_line(node: fx.Node) -> str | None:
    """``file:line`` of the innermost user's frame that made ``node``, if capture noted it."""
    trace = node.meta.get("stack_trace")
    return _innermost(trace) if isinstance(trace, str) else None


@functools.lru_cache(256)  # nodes that a line makes have one trace
def _innermost(trace: str) -> str | None:
    for line in reversed(trace.strip().splitlines()):
        parts = line.strip().split('"')
        if line.strip().startswith("File ") and len(parts) >= 3:
            return f"{parts[1]}:{parts[2].split('line ')[-1].split(',')[0]}"
    return None
