"""The body of one compiled version: fetch inputs, run the graph, replay effects, go on.

::

    def f(a, o):
        s_1 = o.weight                 # inputs and existing objects, as they are at entry
        error = None
        try:
            g0, g1 = graph_1(a, s_1)   # what the backend made of the captured graph
        except BaseException as caught:
            error = caught
        if error is not None:
            return failed(error, None, a, o)
        o.last = g1                    # side effects
        return [g0]                    # the result, rebuilt; or a step around a graph break
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import fx

from torchsmith_tracer._src.codegen.replay import replay
from torchsmith_tracer._src.codegen.resume import generator_code
from torchsmith_tracer._src.codegen.source_text import compile_source, forget_source
from torchsmith_tracer._src.effects.undo import Undo
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.values.builtins.printing import enter_filters

if TYPE_CHECKING:
    from torchsmith_tracer._src.compilation import Compilation
    from torchsmith_tracer._src.regions.record import CodeRecord
    from torchsmith_tracer._src.values.base import Value

Function = Callable[..., object]
Failed = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Body:
    """A finished body.

    Attributes:
        fn: takes the record's parameters by position.
        text: its source.
        graph: the captured graph, None when nothing needs computing.
        compiled: what the backend made of it.
    """

    fn: Function
    text: str
    graph: fx.GraphModule | None
    compiled: Function | None


def new_emitter(trace: Compilation, record: CodeRecord) -> Emitter:
    """An emitter for a body of ``record``."""
    bind: dict[str, object] = {"G": record.globals, "M": modules_of(trace)}
    kept = trace.loop.abandoned.kept
    return Emitter(record.parameter_names(), bind, trace.journal, generator_code, kept)


def modules_of(trace: Compilation) -> dict[str, dict[str, object]]:
    """Namespaces other than the entry function's own, by the names that sources use."""
    spaces = trace.interp.namespaces.values()
    return {space.module: space.obj for space in spaces if space.module is not None}


def emit_return(trace: Compilation, cg: Emitter, value: Value) -> None:
    """Effects, then the return value."""
    replay(cg, trace.journal)
    for context in trace.graph.contexts:
        context.reenter(cg)
    cg.statement(f"return {cg.expr(value)}")


def assemble(
    trace: Compilation,
    record: CodeRecord,
    cg: Emitter,
    failed: Failed,
    compile_graph: Callable[[fx.GraphModule, list[object]], Function],
    undoes: str = "",
) -> Body:
    """Finish the graph with the outputs that ``cg`` asked for, compile it, and make the body.

    Args:
        trace: the finished trace.
        record: whose body this is.
        cg: with everything emitted but the graph call.
        failed: called with the exception and the body's arguments when the graph raises.
        compile_graph: the backend.
        undoes: what the effects make false of what is guarded; a backend finds it in the graph's
            ``meta["undoes"]``, and may leave for a second call what is not worth a first.
    """
    graph: fx.GraphModule | None = trace.graph.finish(list(cg.outputs))
    assert graph is not None
    lines = list(cg.lines)
    compiled: Function | None = None
    calls = any(n.op in ("call_function", "call_method") for n in trace.graph.graph.nodes)
    if not calls and not cg.outputs:
        graph = None
    else:
        if undoes and not trace.graph.draws:  # other random numbers than those of later calls
            graph.meta["undoes"] = undoes
        compiled = compile_graph(graph, trace.graph.example_inputs())
        lines[:0] = _graph_call(trace, graph, compiled, cg, failed)
    text = [f"def {_name(record)}({', '.join(cg.params)}):"]
    text += [f"    {line}" for line in [*cg.loads, *lines]]
    source = "\n".join(text) + "\n"
    filename = compile_source(source, f"body {record.name}", cg.namespace)
    fn: Function = cg.namespace.pop(_name(record))  # type: ignore[assignment]
    weakref.finalize(fn, forget_source, filename)
    return Body(fn, source, graph, compiled)


def _graph_call(
    trace: Compilation, graph: fx.GraphModule, compiled: Function, cg: Emitter, failed: Failed
) -> list[str]:
    """Lines that call the graph, and ``failed`` outside of our handler if it raises."""
    inputs = [cg.source_name(entry.source) for entry in trace.graph.inputs]
    name, error, handler = cg.fresh("graph"), cg.fresh("error"), cg.fresh("failed")
    cg.namespace[name] = compiled
    stays = functools.partial(trace.graph.stays, graph)
    cg.namespace[handler] = functools.partial(failed, inputs, stays)
    params = ", ".join([error, _noted_for_undo(trace, cg), *cg.params])
    targets = ", ".join(cg.outputs.values())
    call = f"{name}({', '.join(inputs)})"
    if len(graph.graph.output_node().args[0]) > len(cg.outputs):  # type: ignore[arg-type]
        call += f"[:{len(cg.outputs)}]"
    return [
        f"{error} = None",
        "try:",
        f"    {targets}, = {call}" if targets else f"    {call}",
        "except BaseException as caught:",
        f"    {error} = caught",
        f"if {error} is not None:",
        f"    return {handler}({params})",
    ]


def _noted_for_undo(trace: Compilation, cg: Emitter) -> str:
    """The name of what a graph that raises may have changed, noted before it runs."""
    graph = trace.graph
    at_risk = (*graph.inputs_at_risk(), *graph.generators_at_risk())
    copies = ", ".join(cg.source_name(entry.source) for entry in at_risk)
    random = graph.draws and graph.may_fail
    touched = ", ".join(cg.source_name(s) for s in graph.attributes if graph.may_fail)
    undo = cg.fresh("undo")
    filters = graph.graph.find_nodes(op="call_function", target=enter_filters)
    if not (copies or random or touched or filters):
        return "None"
    maker = cg.fresh("copies")
    cg.namespace[maker] = Undo
    cg.loads.append(f"{undo} = {maker}({random}, [{touched}], [{copies}])")
    return undo


def _name(record: CodeRecord) -> str:
    name = record.code.co_name
    return f"{name}_body" if name.isidentifier() else "lambda_body"
