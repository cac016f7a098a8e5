"""Arguments, views and aliasing of calls that stay with aten."""

from __future__ import annotations

import operator

import torch
from torch import fx

from torchsmith_fx_backend._src import by_rows, keyed
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.registry import Geometry, View
from torchsmith_fx_backend._src.loops.sizes import size_index
from torchsmith_fx_backend._src.loops.views import PIECE, split_pull
from torchsmith_fx_backend._src.schedule.facts import GEMMS, Facts
from torchsmith_fx_backend._src.schedule.plan import Argument, ExternCall, Name

aten = torch.ops.aten

# Operators whose ``out=`` form computes straight into the buffer (most others copy at the end).
OUT_VARIANTS = {*GEMMS, aten.mv.default, aten.addmv.default} - {aten.linear.default}

# Functions of our own without effects, whose results are memory of their own.
PURE = keyed.PURE | {by_rows.product}


class Externs:
    """Writes the extern calls of one graph.

    Args:
        facts: the graph.
        names: the wrapper's local for each node.
    """

    def __init__(self, facts: Facts, names: dict[fx.Node, str]) -> None:
        self.facts = facts
        self.names = names
        #: planned buffers that are allocated in the layout of one of their views
        self.relaid: set[fx.Node] = set()

    def argument(self, arg: object) -> Argument:
        """A graph argument as a plan argument."""
        if isinstance(arg, fx.Node):
            if not self.facts.is_tensor(arg):
                index = self.facts.scalar_index(arg)
                if index is not None:
                    return plain(index)
                value = arg.meta.get("val")
                if isinstance(value, (int, float, bool)):
                    return value
                if arg.op == "get_attr":
                    return attribute(self.facts.gm, arg)
            return Name(self.names[arg])
        if isinstance(arg, (list, tuple)):
            items = [self.argument(a) for a in arg]
            return items if isinstance(arg, list) else tuple(items)
        if isinstance(arg, dict):
            return {k: self.argument(v) for k, v in arg.items()}
        if isinstance(arg, slice):
            return slice(*(self.argument(a) for a in (arg.start, arg.stop, arg.step)))
        if isinstance(arg, torch.SymInt):
            return size_index(arg)
        return arg

    def calls(self, node: fx.Node, out: str | None = None) -> list[ExternCall]:
        """The call of ``node``; several results go to the names of their ``getitem`` nodes."""
        if isinstance(self.facts.rule(node), View):
            return [self._view(node)]
        results, unpack = self._results(node)
        args = tuple(self.argument(a) for a in node.args)
        kwargs = tuple((k, self.argument(v)) for k, v in node.kwargs.items())
        call = ExternCall(node.target, args, kwargs, results, unpack, out, origins(node))
        value = node.meta.get("val")
        if not isinstance(value, (tuple, list)):
            return [call]
        picks = [u for u in self.facts.taken(node) if not unpack or u.args[0] is not node]
        return [call, *map(self._pick, picks)]

    def _pick(self, node: fx.Node) -> ExternCall:
        whole, place = node.args
        assert isinstance(whole, fx.Node)
        args = (Name(self.names[whole]), place)
        return ExternCall(operator.getitem, args, (), (self.names[node],))

    def _results(self, node: fx.Node) -> tuple[tuple[str | None, ...], bool]:
        value = node.meta.get("val")
        if not isinstance(value, (tuple, list)):
            index = self.facts.scalar_index(node)
            if type(index) is ix.Sym:
                return (index.name,), False
            return (self.names[node],), False
        names: list[str | None] = [None] * len(value)
        for user in node.users:
            if user.target is not operator.getitem or user in self.facts.dead:
                if user not in self.facts.dead:
                    return (self.names[node],), False
                continue
            number = int(user.args[1])  # type: ignore[arg-type]
            if names[number] is not None:
                return (self.names[node],), False
            names[number] = self.names[user]
        return tuple(names), True

    # -------------------------------------------------------------------------------- views

    def _view(self, node: fx.Node) -> ExternCall:
        facts, base = self.facts, self.facts.called_on(node)
        if base is not facts.base(node) or base in self.relaid:
            return self._restride(node, base)
        if facts.rule(node) is PIECE:
            return self._piece(node, base)
        args = [Name(self.names[base]), *(self.argument(a) for a in node.args[1:])]
        kwargs = tuple((k, self.argument(v)) for k, v in node.kwargs.items())
        return ExternCall(
            node.target, tuple(args), kwargs, (self.names[node],), origins=origins(node)
        )

    def _restride(self, node: fx.Node, root: fx.Node) -> ExternCall:
        """A chain of views of a planned buffer in one call."""
        info, whole = self.facts.info(node), self.facts.info(root)
        if node.target is aten.detach.default and info.stride == whole.stride:
            if info.shape == whole.shape:  # not a view, for autograd
                name = (Name(self.names[root]),)
                return ExternCall(node.target, name, (), (self.names[node],), origins=origins(node))
        size = [plain(s) for s in info.shape]
        stride = [plain(s) for s in info.stride]
        args: list[Argument] = [Name(self.names[root]), size, stride]
        if info.offset != ix.ZERO:
            args.append(plain(info.offset))
        target = aten.as_strided.default
        return ExternCall(target, tuple(args), (), (self.names[node],), origins=origins(node))

    def _piece(self, node: fx.Node, base: fx.Node) -> ExternCall:
        """One piece of a split, as a slice (or select) of its own."""
        shapes = self.facts.info(base).shape, self.facts.info(node).shape
        zero = (ix.ZERO,) * len(shapes[1])
        start = split_pull(Geometry(node, *shapes, {}), zero)
        name = Name(self.names[base])
        if len(shapes[0]) != len(shapes[1]):
            parent = node.args[0]
            assert isinstance(parent, fx.Node)
            dim = int(parent.args[1]) if len(parent.args) > 1 else 0  # type: ignore[arg-type]
            dim %= len(shapes[0])
            args: tuple[Argument, ...] = (name, dim, plain(start[dim]))
            target = aten.select.int
        else:
            dim = next((d for d, (a, b) in enumerate(zip(*shapes)) if a != b), 0)
            end = ix.add(start[dim], shapes[1][dim])
            args = (name, dim, plain(start[dim]), plain(end))
            target = aten.slice.Tensor
        return ExternCall(target, args, (), (self.names[node],), origins=origins(node))


def plain(x: Index) -> Argument:
    """An index as an argument: a number where it is one."""
    return x.value if type(x) is ix.Const else x


def attribute(module: torch.nn.Module, node: fx.Node) -> object:
    """What a ``get_attr`` node reads."""
    return operator.attrgetter(str(node.target))(module)


def origins(node: fx.Node) -> tuple[str, ...]:
    """What to say about a node in a comment: its operator, and the user's line when known."""
    name = getattr(node.target, "__name__", str(node.target))
    text = str(node.target) if isinstance(node.target, torch._ops.OpOverload) else name
    line = user_line(node)
    return (text,) if line is None else (text, line)


def user_line(node: fx.Node) -> str | None:
    """``file:line`` of the user's code that made ``node``, if capture noted it."""
    trace = node.meta.get("stack_trace")
    if isinstance(trace, str):
        for line in reversed(trace.strip().splitlines()):
            parts = line.strip().split('"')
            if line.strip().startswith("File ") and len(parts) >= 3:
                number = parts[2].split("line ")[-1].split(",")[0]
                return f"{parts[1]}:{number}"
    return None


def aliases_input(node: fx.Node) -> bool:
    """Whether a result may share memory with an argument (or is not known not to)."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target not in PURE
    return any(r.alias_info is not None for r in target._schema.returns)
