"""A plan interpreter over the reference evaluator, and short ways to make graphs, for tests."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from loop_reference import evaluate, verify
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx  # the peer, as a graph source
from torchsmith_fx_backend._src.aot.functionalize import functionalize
from torchsmith_fx_backend._src.capture.rules import RULES
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.accesses import check_assumptions
from torchsmith_fx_backend._src.loops.ir import Kernel
from torchsmith_fx_backend._src.runtime.support import conform
from torchsmith_fx_backend._src.schedule import schedule_graph
from torchsmith_fx_backend._src.schedule.plan import (
    Allocate,
    BindSymbol,
    ExternCall,
    Free,
    Launch,
    Name,
    Plan,
)


def trace(
    fn: Callable, *args: object, decompose: dict | None = None, mode: str = "fake"
) -> fx.GraphModule:
    """``fn`` as our own capture gives it, or with a table (or symbolic sizes) as the peer's."""
    if decompose is None and mode == "fake":
        with torch.no_grad():
            return functionalize(fn, args, RULES).module
    with torch.no_grad():
        gm = make_fx(torch.func.functionalize(fn), decompose or {}, tracing_mode=mode)(*args)
    gm.graph.eliminate_dead_code()
    return gm


def graph_of(op: object, *args: object) -> fx.GraphModule:
    """A graph of one call, for operators that tracing would take apart."""
    graph = fx.Graph()
    mode = FakeTensorMode()
    nodes, fakes = [], []
    for number, arg in enumerate(args):
        if isinstance(arg, torch.Tensor):
            node = graph.placeholder(f"x{number}")
            node.meta["val"] = arg = mode.from_tensor(arg)
            nodes.append(node)
        else:
            nodes.append(arg)
        fakes.append(arg)
    node = graph.call_function(op, tuple(nodes))
    with mode:
        value = node.meta["val"] = op(*fakes)
    results = [node]
    if isinstance(value, (tuple, list)):
        results = []
        for number, part in enumerate(value):
            results.append(graph.call_function(operator.getitem, (node, number)))
            results[-1].meta["val"] = part
    graph.output(tuple(results))
    return fx.GraphModule(torch.nn.Module(), graph)


def kernels(plan: Plan) -> list[Kernel]:
    return [s.kernel for s in plan.steps if isinstance(s, Launch)]


def externs(plan: Plan) -> list[ExternCall]:
    """Operators that the plan calls; what checks their results is none."""
    calls = [s for s in plan.steps if isinstance(s, ExternCall)]
    return [s for s in calls if s.target is not conform]


def run_plan(plan: Plan, inputs: Sequence[object]) -> list[object]:
    """Execute ``plan``; each use of a freed or unknown name is a ``KeyError``."""
    env: dict[str, object] = dict(zip(plan.inputs, inputs, strict=True))
    env.update(plan.constants)

    def resolve(arg: object) -> object:
        if isinstance(arg, Name):
            return env[arg.name]
        if isinstance(arg, ix.Index):
            return ix.evaluate(arg, (), env)
        if isinstance(arg, (list, tuple)):
            return type(arg)(resolve(a) for a in arg)
        return arg

    for step in plan.steps:
        match step:
            case Allocate(name, layout, reuse):
                size = [resolve(s) for s in layout.size]
                stride = [resolve(s) for s in layout.stride]
                if reuse is None:
                    new = torch.empty_strided(
                        size, stride, dtype=layout.dtype, device=layout.device
                    )
                    if layout.dtype.is_floating_point:
                        new.fill_(float("nan"))
                    env[name] = new
                else:
                    env[name] = env[reuse].as_strided(size, stride)
            case Launch(kernel, args, _, _, sizes, numbers=numbers):
                verify(kernel, sizes)
                symbols = {s: env[n] for s, n in zip(kernel.symbols, numbers or kernel.symbols)}
                check_assumptions(kernel, sizes, symbols)
                evaluate(kernel, [env[a] for a in args], symbols)
            case ExternCall(target, args, kwargs, results, unpack, out, _):
                call_args = [resolve(a) for a in args]
                call_kwargs = {k: resolve(v) for k, v in kwargs}
                if out is not None:
                    packet = target._overloadpacket
                    result = packet.out(*call_args, **call_kwargs, out=env[out])
                    assert result is env[out] or result.data_ptr() == env[out].data_ptr()
                else:
                    result = target(*call_args, **call_kwargs)
                if unpack:
                    for name, value in zip(results, result, strict=True):
                        if name is not None:
                            env[name] = value
                elif results:
                    env[results[0]] = result
            case BindSymbol(symbol, tensor, what, axis):
                t = env[tensor]
                env[symbol] = getattr(t, what)(*((axis,) if what in ("size", "stride") else ()))
            case Free(name):
                del env[name]
    return [resolve(o) for o in plan.outputs]


def check(
    fn: Callable,
    *args: object,
    decompose: dict | None = None,
    tolerance: float = 2e-6,
    mode: str = "fake",
) -> Plan:
    """Schedule ``fn`` (an operator: as one node), run the plan, compare with eager; the plan."""
    if isinstance(fn, torch._ops.OpOverload):
        gm = graph_of(fn, *args)
    else:
        gm = trace(fn, *args, decompose=decompose, mode=mode)
    plan = schedule_graph(gm)
    want = fn(*(a.clone() if isinstance(a, torch.Tensor) else a for a in args))
    want = list(want) if isinstance(want, (tuple, list)) else [want]
    with torch.no_grad():
        given = [a for a in args if isinstance(a, torch.Tensor)] if mode == "fake" else args
        got = run_plan(plan, given)
    assert len(got) == len(want)
    for mine, theirs in zip(got, want):
        if not isinstance(theirs, torch.Tensor):
            assert mine == theirs
            continue
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert mine.stride() == theirs.stride(), (mine.stride(), theirs.stride())
        low = theirs.dtype in (torch.bfloat16, torch.float16)
        torch.testing.assert_close(
            mine,
            theirs,
            rtol=2e-2 if low else max(tolerance, 2e-6) if theirs.is_floating_point() else 0,
            atol=2e-2 if low else tolerance if theirs.is_floating_point() else 0,
            equal_nan=True,
        )
    return plan
