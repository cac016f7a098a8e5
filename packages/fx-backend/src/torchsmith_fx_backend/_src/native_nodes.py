"""Graphs with nodes that are no operators: hooks of Python's, settings of torch, random generators,
branches and loops that data decides about; with operators of wrapper subclasses, or others that
cannot be compiled.

Such a node has to run at its place, on the very tensors of the program. The graph is cut there:
what is between is compiled, part by part, when it first runs, and the rest runs as captured. So are
the bodies of branches and loops compiled.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torchsmith_guards.errors import UnsupportedTensorError

from torchsmith_fx_backend._src.any_sizes import AnySizes
from torchsmith_fx_backend._src.capture.symbols import SYMBOLIC_TYPES, SymbolNodes
from torchsmith_fx_backend._src.capture.torch_private import (
    FakeTensor,
    HigherOrderOperator,
    is_setting,
    is_wrapper,
)
from torchsmith_fx_backend._src.captured import example_of, is_foreign, is_symbolic, untold
from torchsmith_fx_backend._src.nested import Compile
from torchsmith_fx_backend.errors import OwnLeafError, UntrackedError

# What tracers call in graphs for backends that have ``native_nodes``.
_HOOKS = frozenset(("module_hooks", "set_up_hooks", "retain_grad", "watched"))
# What data decides about; their bodies are called as they are.
_CONTROL = frozenset(("cond", "while_loop"))
# What libraries of other devices do as one, for any length; capture would unroll it.
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
# What makes tensors that require a gradient, perhaps of another part's results.
_LEAVES = frozenset(("requires_grad_", "Parameter"))
# Changes of mode, which capture follows within a graph, but not over a cut.
_MODE = re.compile("(_cuda)?_set_.*|_(enter|exit)_(autocast|inference_mode)")
# What goes back through all that made a tensor, in whichever part.
_GRADIENTS = frozenset(("backward", "grad"))
# Names of what may write in place.
_WRITING = re.compile(r".*[^_]_|setitem|i(add|sub|mul|pow|mod|and|or|xor|\w+(div|shift|mul))")

_EXAMPLES = ("example_value", "val")


def has_native_nodes(gm: fx.GraphModule) -> bool:
    """Whether a graph, or a body in it, has nodes that capture would not understand."""
    graphs = [m.graph for m in gm.modules() if isinstance(m, fx.GraphModule)]
    return any(_is_native(node) for graph in graphs for node in graph.nodes)


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_native(node: fx.Node) -> bool:
    if not node.op.startswith("call"):
        return False
    name = _name(node)
    if name in _HOOKS or (node.op == "call_function" and (name in _CONTROL or is_setting(name))):
        return True
    values = [_value(each) for each in (node, *node.all_input_nodes)]
    if name in _RECURRENT:
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        return any(tensor.device.type != "cpu" for tensor in tensors)
    others = [value for value in values if type(value) is not FakeTensor]
    return any(isinstance(value, torch.Generator) or is_wrapper(value) for value in others)


def failing_nodes(
    gm: fx.GraphModule, error: BaseException | None, blamed: Collection[object]
) -> list[fx.Node]:
    """The nodes of a captured graph that this error came up at; all calls of what is ``blamed``
    already, and all that make a tensor require a gradient if that is what it is about."""
    nodes = gm.graph.nodes
    if isinstance(error, OwnLeafError):
        if any("hook" in _name(n) for n in nodes):
            return []  # it belongs to the leaf, which another part would be given
        return [n for n in nodes if _name(n) in _LEAVES or n.kwargs.get("requires_grad")]
    node = getattr(error, "node", None)
    if node is None:
        return [] if error is None else failing_nodes(gm, error.__cause__, blamed)
    if node.target not in blamed:
        return [node]
    return [n for n in nodes if (n.op, n.target) == (node.op, node.target)]


def _with_gradients_apart(nodes: list[fx.Node]) -> list[fx.Node]:
    """``nodes`` with each ``retain_grad`` right after its tensor: what uses that is another part
    then, through which its gradient comes whole. Writes stay where they are."""
    for node in [n for n in nodes if _name(n) == "retain_grad"]:
        place, now = nodes.index(node.all_input_nodes[0]), nodes.index(node)
        between = nodes[place + 1 : now]
        writes = any("out" in n.kwargs or _WRITING.fullmatch(_name(n)) for n in between)
        if not writes and nodes[place].op != "placeholder":
            nodes.insert(place + 1, nodes.pop(now))
    return nodes


def cut(
    gm: fx.GraphModule,
    inputs: Sequence[object],
    compile_part: Compile,
    apart: Collection[fx.Node] = (),
) -> InParts:
    """The graph, which is called with ``inputs`` first, with each part between native nodes,
    ``apart`` among them, in one call."""
    values = {node: _value(node) for node in gm.graph.nodes}
    values |= zip(gm.graph.find_nodes(op="placeholder"), inputs)
    tensors = {node for node, value in values.items() if isinstance(value, torch.Tensor)}
    # What takes one of several results stays with the call that gives them.
    several = {node for node, value in values.items() if isinstance(value, (tuple, list))}
    picks = {node for node in values if _indexed(node) in several}
    if not _sizes_known(map(_value, gm.graph.find_nodes(op="placeholder"))):
        # The example of what ``x.data = ...`` has changed tells of before.
        values |= {n.args[0]: None for n in gm.graph.find_nodes(op="call_function", target=setattr)}
    outer = fx.Graph()
    sizes = SymbolNodes(outer)
    parts: dict[str, torch.nn.Module] = {}
    copies: dict[fx.Node, fx.Node] = {}

    def take(node: fx.Node) -> fx.Node:
        """The outer graph's own of a node of ``gm``."""
        if node not in copies:
            copy = copies[node] = outer.node_copy(node, take)
            if node.op == "call_function" and _name(node) in _CONTROL:
                for name in (str(n.target) for n in node.all_input_nodes if n.op == "get_attr"):
                    parts[name] = _body(gm.get_submodule(name), compile_part)
                if isinstance(node.target, HigherOrderOperator):
                    copy.target = _CONTROLLED[_name(node)]
        return copies[node]

    def native(node: fx.Node) -> bool:
        bodies = [n.meta.get("example_value") for n in node.all_input_nodes if n.op == "get_attr"]
        inside = any(has_native_nodes(body) for body in bodies if isinstance(body, fx.GraphModule))
        indexed = _indexed(node)
        if indexed in several:
            return indexed.op == "placeholder" or native(indexed)
        inside |= indexed is not None and indexed not in tensors
        inside |= node in apart or _is_native(node) or _name(node) in _LEAVES
        return inside or bool(_MODE.fullmatch(_name(node)))

    *nodes, output = _with_gradients_apart([*gm.graph.nodes])
    others = [n for n in nodes if n.op != "get_attr" and n not in picks]
    calls = [n for node in others for n in _with(node, picks)]
    while more := {*_over_cuts(calls, native, values)}.difference(apart):
        apart = more.union(apart)
    for as_it_is, run in itertools.groupby(calls, lambda n: n.op == "placeholder" or native(n)):
        if as_it_is:
            for node in run:
                copy, value = take(node), example_of(node, values.get(node))
                if node.op == "placeholder" and not is_foreign(value):
                    if isinstance(value, FakeTensor):
                        sizes.bind_tensor(value, copy)
                    elif isinstance(value, SYMBOLIC_TYPES):
                        sizes.bind(value, copy)
            continue
        inside = list(run)
        graph, taken, results = _part(inside)
        for copy, node in zip(graph.find_nodes(op="placeholder"), taken, strict=True):
            if is_symbolic(values.get(node)):  # an input's own example may tell no sizes
                copy.meta.setdefault("example_value", values[node])
        name = f"part_{len(parts)}"
        ends = [values.get(node) for node in (*taken, *results)]
        told: list[Any] = []
        with contextlib.suppress(UntrackedError):  # data decides about the size
            told = [sizes.lower_expr(symbol) for symbol in untold(map(_value, taken))]
        for node in reversed(told):
            with graph.inserting_before():
                graph.placeholder(node.name).meta["val"] = _value(node)
        parts[name] = _later(fx.GraphModule(gm, graph), ends, compile_part)
        call = outer.call_module(name, (*told, *map(take, taken)))
        for place, node in enumerate(results):
            copies[node] = outer.call_function(operator.getitem, (call, place))
    outer.output(fx.map_arg(output.args[0], take))
    around = dict.fromkeys(_name(n) for n in calls if n in apart or _is_native(n))
    read = (str(node.target) for node in gm.graph.find_nodes(op="get_attr"))
    attributes = {name: operator.attrgetter(name)(gm) for name in read}
    modules = {**dict(gm.named_children()), **attributes, **parts}
    return InParts(fx.GraphModule(modules, outer), tuple(around))


def _over_cuts(
    calls: list[fx.Node], native: Callable[[fx.Node], bool], values: dict[fx.Node, object]
) -> list[fx.Node]:
    """What takes gradients through results of nodes before its part, which autograd knows and the
    part would not, and what makes the tensors whose gradients it asks for."""
    found, part = [], set[fx.Node]()
    for node in calls:
        if native(node):
            part = set()
            continue
        part.add(node)
        if _name(node) in _GRADIENTS:
            taken = (n for each in part for n in each.all_input_nodes if n not in part)
            made = [values.get(n) for n in taken if n.op.startswith("call")]
            if any(getattr(value, "requires_grad", True) for value in made):
                roots: list[fx.Node] = []
                fx.map_arg(node.args[:1], roots.append)
                asked = (_indexed(n) or n for n in node.all_input_nodes if n not in roots)
                found += [node, *asked]
                part = set()
    return found


def _indexed(node: fx.Node) -> Any:
    """The node that this one takes an item of, if it does."""
    taken = node.args[0] if node.target is operator.getitem else None
    return taken if isinstance(taken, fx.Node) else None


def _with(node: fx.Node, picks: Collection[fx.Node]) -> Iterator[fx.Node]:
    """A node and what takes its results, and theirs."""
    yield node
    for user in node.users:
        if user in picks and user.args[0] is node:
            yield from _with(user, picks)


class InParts:
    """A graph that is compiled in parts, when they first run, around native nodes.

    Attributes:
        around: the names of those.
        parts: what is compiled.
    """

    def __init__(self, whole: fx.GraphModule, around: Sequence[str]) -> None:
        self._whole, self.around = whole, ", ".join(around)
        self.parts = [m for m in whole.children() if isinstance(m, _Later)]

    def __call__(self, *inputs: Any) -> Any:
        return self._whole.forward(*inputs)  # as a module it would print tracebacks of its own

    def notes(self) -> list[str]:
        """What to know about it."""
        return [f"Compiled in parts, when they first run, around {self.around}."]

    def schedules(self) -> list[dict[str, Any]]:
        """What the parts run that have run; see ``page.parts.schedules``."""
        found = []
        for name, part in self._whole.named_children():
            own = getattr(getattr(part, "compiled", None), "schedules", list)
            found += [{**row, "name": f"{name}, {row['name']}"} for row in own()]
        return found


def _part(inside: list[fx.Node]) -> tuple[fx.Graph, list[fx.Node], list[fx.Node]]:
    """A graph of some nodes, which other nodes it takes, and which of its own are used outside."""
    graph, own = fx.Graph(), set(inside)
    used = dict.fromkeys(n for node in inside for n in node.all_input_nodes if n not in own)
    inputs = [n for n in used if n.op != "get_attr"]
    copies: dict[fx.Node, fx.Node] = {}
    # Examples of sizes that vary alone: else what it is at its call counts, after ``x.data = ...``.
    left = _EXAMPLES if _sizes_known(map(_value, inputs)) else ()
    for node in inputs:
        copies[node] = copy = graph.placeholder(node.name)
        copy.meta = {key: value for key, value in node.meta.items() if key not in left}
    for node in (*(n for n in used if n.op == "get_attr"), *inside):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    results = [node for node in inside if not own.issuperset(node.users)]
    graph.output(tuple(copies[node] for node in results))
    return graph, inputs, results


def _later(part: torch.nn.Module, ends: Iterable[object], compile_part: Compile) -> torch.nn.Module:
    """``part``, to be compiled if its inputs and results, as known, are tensors and numbers, and
    tell the sizes that others are computed from."""
    known = all(isinstance(value, (torch.Tensor, *SYMBOLIC_TYPES)) for value in ends)
    if not known or not isinstance(part, fx.GraphModule):
        return part
    inputs = part.graph.find_nodes(op="placeholder")
    return part if untold(map(_value, inputs)) else _Later(part, compile_part)


def _body(body: torch.nn.Module, compile_part: Compile) -> torch.nn.Module:
    """A branch, or a step of a loop. One operator alone is slower when it is compiled."""
    nodes = list(body.graph.nodes) if isinstance(body, fx.GraphModule) else []
    if sum(n.op.startswith("call") for n in nodes) < 2:
        return body
    inputs = (n for n in nodes if n.op == "placeholder")
    return _later(body, map(_value, (*inputs, *nodes[-1].all_input_nodes)), compile_part)


def _cond(condition: object, when_true: Any, when_false: Any, operands: Sequence[object]) -> Any:
    """``torch.ops.higher_order.cond``."""
    return (when_true if condition else when_false)(*operands)


def _while_loop(condition: Any, body: Any, carried: Sequence[Any], shared: Sequence[Any]) -> Any:
    """``torch.ops.higher_order.while_loop``."""
    while condition(*carried, *shared):
        carried = body(*carried, *shared)
    return tuple(carried)


_CONTROLLED = {"cond": _cond, "while_loop": _while_loop}


def _value(node: fx.Node) -> object:
    return node.meta.get("example_value", node.meta.get("val"))


def _sizes_known(values: Iterable[object]) -> bool:
    return all(isinstance(v, torch.Tensor) and all(type(n) is int for n in v.shape) for v in values)


class _Later(torch.nn.Module):
    """A part that is compiled for the tensors of its first call, which comes too late for guards
    of the frame: what compiling assumes of sizes that vary is checked here."""

    def __init__(self, part: fx.GraphModule, compile_part: Compile) -> None:
        super().__init__()
        self.part, self.compile_part = part, compile_part
        self.compiled: Callable[..., Any] | None = None

    def __call__(self, *inputs: object) -> Any:  # which hooks on all modules do not see
        if self.compiled is None:
            examples = map(example_of, self.part.graph.find_nodes(op="placeholder"), inputs)
            vary = any(map(is_symbolic, examples))
            make = functools.partial(AnySizes, build=self.compile_part)
            try:
                self.compiled = (make if vary else self.compile_part)(self.part, inputs)
            except UnsupportedTensorError:  # a sparse one beside those that vary, say
                self.compiled = self.part
        # Called as a module, a graph prints a traceback of its own of what the program raises.
        run = self.compiled
        return (run.forward if isinstance(run, fx.GraphModule) else run)(*inputs)
