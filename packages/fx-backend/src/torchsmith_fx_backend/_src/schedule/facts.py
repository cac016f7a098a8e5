"""Facts about one graph: layouts, which lowering applies, what is recomputed, what must exist.

A node is one of: an input, a view (folded into the index expressions of its readers), a computed
node (joins a nest), an inlined node (cheap: recomputed in each nest that reads it), or an extern
call. ``materialised`` nodes must exist in memory, because aten or the caller reads them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import fx

from torchsmith_fx_backend._src import keyed
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Body, lower
from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.ir import Scan
from torchsmith_fx_backend._src.loops.pieces import MANY_PIECES
from torchsmith_fx_backend._src.loops.pointwise import copy_into
from torchsmith_fx_backend._src.loops.registry import (
    Coords,
    Pointwise,
    Reduction,
    Rule,
    Scatter,
    View,
    rule_for,
)
from torchsmith_fx_backend._src.loops.scatters import takes_alone
from torchsmith_fx_backend._src.loops.sizes import (
    Info,
    UnrepresentableError,
    estimate,
    size_index,
    sizes,
    tensor_info,
)
from torchsmith_fx_backend._src.loops.views import PIECE, SPLITS
from torchsmith_fx_backend._src.runtime.products import EXACT_MATMUL
from torchsmith_fx_backend._src.schedule import inlining
from torchsmith_fx_backend._src.schedule.inlining import (
    JOINED,
    MOVED_COST,
    MUCH_LARGER,
    PADDED_COST,
    WINDOW_COST,
)
from torchsmith_fx_backend._src.schedule.library import library_is_faster
from torchsmith_fx_backend._src.schedule.places import Place, places

aten = torch.ops.aten

SUPPORTED = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)
FEW_PARTS, MANY_PARTS = 8, 48  # of a concatenation: cost nothing, and need too many registers
DEEPEST = 80  # what a reader computes of a chain of parts put into one tensor, one by one
SHORT_SCAN, FEW_SCANS = 4096, 64  # rows that are longer and fewer leave a GPU idle
COPY = aten.copy_.default
COPY_INTO = Pointwise(copy_into)
# Views that show each element of their base.
WHOLE_VIEWS = frozenset(
    {
        aten.view.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.expand.default,
        aten.t.default,
        aten.transpose.int,
        aten.permute.default,
    }
)
_BATCH_NORM = aten.native_batch_norm.default
GEMMS = frozenset(
    {
        aten.linear.default,
        aten.mm.default,
        aten.bmm.default,
        aten.addmm.default,
        aten.baddbmm.default,
        EXACT_MATMUL,
    }
)


class Facts:
    """Implements ``loops.values.GraphValues`` for one graph module."""

    def __init__(
        self,
        gm: fx.GraphModule,
        refused: frozenset[fx.Node] = frozenset(),
        bodies: dict[fx.Node, Body | None] | None = None,
        inline: bool = True,
        again: bool = True,
    ) -> None:
        self.gm = gm
        self.refused = refused
        self._bodies = {} if bodies is None else bodies
        self._lowered_calls: dict[object, fx.Node] = {}
        self.nodes: list[fx.Node] = list(gm.graph.nodes)
        self._number = {node: i for i, node in enumerate(self.nodes)}
        self._info: dict[fx.Node, Info | None] = {}
        self._rule: dict[fx.Node, Rule | None] = {}
        self._leaves: dict[fx.Node, dict[fx.Node, int]] = {}
        self._cost: dict[fx.Node, int] = {}
        self._failing: set[fx.Node] = set()  # of those that are inlined
        self.inline: set[fx.Node] = set()
        self.again, self.computes_again = again, False  # see ``inlining.saves_half``
        self.materialised: set[fx.Node] = set()
        self.called_views: set[fx.Node] = set()
        self._short: dict[fx.Node, fx.Node] = {}
        self.dead: set[fx.Node] = set()
        self._find_dead()
        self.names = _names(self)
        self.volatile: set[fx.Node] = set()
        for node in self.nodes:
            rule = self._rule[node] = self._find_rule(node)
            if rule is None:
                continue
            if self._lowered(node, rule) is None or not self._worthwhile(node, rule):
                self._rule[node] = None
        for node in self.nodes:
            if library_is_faster(self, node):
                self._rule[node] = None
        self._find_volatile()
        self._era: dict[fx.Node, int] = {}
        self._count_eras()
        self._find_materialised()
        self.placed: dict[fx.Node, Place] = {}
        self.crowded: list[fx.Node] = []  # concatenations that aten does better
        for node in gm.graph.find_nodes(op="call_function", target=aten.cat.default):
            most = MANY_PARTS if self.device(node).type in inlining.FAST else MANY_PIECES
            many = self.told_apart(node)
            least = 0 if many > most else 1 if node in self.materialised else many
            if self._rule[node] is None or not (many or least):
                continue
            if found := places(self, node, least) if inline else {}:
                self.placed |= found
                self.materialised.add(node)
            elif not least:
                self.crowded.append(node)
        self.wholes = {place.whole for place in self.placed.values()}
        for node in self.nodes:
            self._find_inlined(node, inline)
        self.changed = False  # by a walk that needed more in memory than was known here

    # ------------------------------------------------------------------- GraphValues

    def info(self, node: fx.Node) -> Info:
        found = self.try_info(node)
        if found is None:
            raise UnrepresentableError(node.name)
        return found

    def try_info(self, node: fx.Node) -> Info | None:
        """Layout of a tensor node, or None when it has no strided layout in index form."""
        if node not in self._info:
            value = node.meta.get("val")
            info = None
            if isinstance(value, torch.Tensor):
                try:
                    info = tensor_info(value)
                except UnrepresentableError:
                    info = None
            self._info[node] = info
        return self._info[node]

    def is_tensor(self, node: fx.Node) -> bool:
        return isinstance(node.meta.get("val"), torch.Tensor)

    def device(self, node: fx.Node) -> torch.device:
        """Where the results of a node are."""
        value = node.meta["val"]
        first: torch.Tensor = value[0] if isinstance(value, (tuple, list)) else value
        return first.device

    def taken(self, node: fx.Node) -> list[fx.Node]:
        """The ``getitem`` nodes that take a call's results apart, and those that go on with a list
        among them."""
        own = [u for u in node.users if u.target is operator.getitem and u not in self.dead]
        return [*own, *(deep for u in own if not self.is_tensor(u) for deep in self.taken(u))]

    def rule(self, node: fx.Node) -> Rule | None:
        return self._rule[node]

    def body(self, node: fx.Node) -> Body:
        found = self._lowered(node, COPY_INTO if node.target is COPY else self._rule[node])
        assert found is not None
        return found

    def _lowered(self, node: fx.Node, rule: Rule | None) -> Body | None:
        """The node's body, or None where this very call has no such form."""
        if node in self._bodies:
            return self._bodies[node]
        same = _call_signature(node)
        like = self._lowered_calls.get(same)
        body = None
        if like is not None:
            body = self._bodies[like]
            if body is not None:
                theirs = like.all_input_nodes
                mine = dict(zip(theirs, node.all_input_nodes, strict=True))
                body = replace(body, operands=tuple(mine[o] for o in body.operands))
        elif rule is not None:
            try:
                body = lower(self, node, rule)
            except UnrepresentableError:
                body = None
            if same is not None:
                self._lowered_calls[same] = node
        self._bodies[node] = body
        return body

    def space(self, node: fx.Node, rule: Rule) -> Coords:
        if isinstance(rule, Scatter):
            return rule.space(self, node)
        if not isinstance(rule, Reduction):
            return self.info(node).shape
        if rule.walks is None:
            return self.output_shapes(node)[0]
        walked = node.args[rule.walks]
        assert isinstance(walked, fx.Node)
        return self.info(walked).shape

    def base(self, node: fx.Node) -> fx.Node:
        first = node.args[0]
        assert isinstance(first, fx.Node)
        if node.target is operator.getitem and self._rule[node] is PIECE:
            inner = first.args[0]
            assert isinstance(inner, fx.Node)
            return inner
        return first

    def inlined(self, node: fx.Node) -> bool:
        return node in self.inline

    def number(self, node: fx.Node) -> int:
        return self._number[node]

    def output_shapes(self, node: fx.Node) -> tuple[Coords, ...]:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            return (self.info(node).shape,)
        return tuple(sizes(v.shape) for v in value)

    def scalar_index(self, node: fx.Node) -> Index | None:
        value = node.meta.get("val")
        if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
            try:
                return size_index(value)
            except UnrepresentableError:
                return None
        return None

    def scalar_name(self, node: fx.Node) -> str:
        return self.names[node]

    # --------------------------------------------------------------------- structure

    def root(self, node: fx.Node) -> fx.Node:
        """The node behind a chain of views."""
        while isinstance(self._rule[node], View):
            node = self.base(node)
        return node

    def is_split(self, node: fx.Node) -> bool:
        """Whether ``node`` cuts a tensor into views, each taken out by a ``getitem``."""
        if node.target not in SPLITS:
            return False
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if self.try_info(source) is None:
            return False
        try:
            self.output_shapes(node)
        except UnrepresentableError:
            return False
        return True

    def is_output_of(self, node: fx.Node) -> fx.Node | None:
        """For ``getitem`` of a lowered multi-output node: that node."""
        if node.target is operator.getitem:
            parent = node.args[0]
            assert isinstance(parent, fx.Node)
            rule = self._rule.get(parent)
            if isinstance(rule, Reduction) and rule.several:
                return parent
        return None

    def leaves(self, node: fx.Node) -> Iterable[fx.Node]:
        """Nodes whose values are read when ``node`` is read: itself, unless view or inlined."""
        return self._leaves[node]

    def same_era(self, node: fx.Node, other: fx.Node) -> bool:
        """Whether no call that does real work through aten stands between the two."""
        return self._era[node] == self._era[other]

    def users(self, node: fx.Node) -> list[fx.Node]:
        return [u for u in node.users if u not in self.dead]

    # ----------------------------------------------------------------- classification

    def _find_dead(self) -> None:
        for node in reversed(self.nodes):
            if node.op in ("output", "placeholder"):
                continue
            if all(u in self.dead for u in node.users) and not has_effect(node):
                self.dead.add(node)

    def _find_rule(self, node: fx.Node) -> Rule | None:
        if node.op != "call_function" or node in self.dead or node in self.refused:
            return None
        if node.target is operator.getitem:
            parent = node.args[0]
            assert isinstance(parent, fx.Node)
            return PIECE if self.is_split(parent) else None
        rule = rule_for(node)
        if rule is None:
            return None
        inputs = [a for a in node.all_input_nodes if self.is_tensor(a)]
        infos = [self.try_info(a) for a in inputs]
        value = node.meta.get("val")
        results = list(value) if isinstance(value, (tuple, list)) else [value]
        tensors = [r for r in results if isinstance(r, torch.Tensor)]
        if None in infos or not tensors or len(tensors) != len(results):
            return None
        if isinstance(rule, View):
            return rule if self.try_info(node) is not None else None
        if isinstance(rule, Scatter) and not self._owns_target(node):
            return None
        try:
            shapes = [*self.output_shapes(node), *(i.shape for i in infos if i is not None)]
        except UnrepresentableError:
            return None
        device = tensors[0].device
        for arg, info in zip(inputs, infos):
            assert info is not None
            made = self._rule[self.root(arg)]
            free = isinstance(made, Pointwise) and made.creation
            if info.dtype not in SUPPORTED or not (free or info.read_on(device)):
                return None
        if any(r.dtype not in SUPPORTED for r in tensors):
            return None
        own = self.try_info(node)
        if own is not None and own.overlapping():
            return None  # each write would change other elements as well, in eager's order
        if not isinstance(rule, Pointwise) or not rule.moves:
            # Nothing to walk; aten knows what an empty reduction gives.
            if any(ix.ZERO in shape for shape in shapes):
                return None
        elif any(ix.ZERO in shape for shape in self.output_shapes(node)):
            return None
        return rule

    def _owns_target(self, node: fx.Node) -> bool:
        """Whether what a scatter writes into is memory of a kernel's own, laid out as its result,
        and nothing else reads it. ``passes.ScatterTargets`` sees to that."""
        target = node.args[0]
        assert isinstance(target, fx.Node)
        info = self.try_info(target)
        if info is None or info != self.try_info(node) or not info.dense():
            return False
        kernel = isinstance(self._rule[target], Pointwise | Scatter)
        return kernel and takes_alone(node) and info.offset == ix.ZERO

    def _worthwhile(self, node: fx.Node, rule: Rule) -> bool:
        """Whether points that follow each other leave enough parallel work."""
        if not isinstance(rule, Reduction):
            return True
        return self.device(node).type == "cpu" or self._rows_to_scan(node, rule)

    def _rows_to_scan(self, node: fx.Node, rule: Reduction) -> bool:
        """Whether there are no scans, or enough rows for a program each."""
        if not any(type(n) is Scan for n in self.body(node).nodes):
            return True
        rows, length = self.rows(node, rule)
        return length <= SHORT_SCAN or rows >= FEW_SCANS

    def rows(self, node: fx.Node, rule: Reduction) -> tuple[int, int]:
        """How many rows are reduced, and how long one is."""
        dims, space = rule.dims(node), self.space(node, rule)
        length = estimate(ix.product([n for d, n in enumerate(space) if d in dims]))
        return estimate(ix.product([n for d, n in enumerate(space) if d not in dims])), length

    def reduces_columns(self, node: fx.Node) -> bool:
        """Whether elements of different rows of a reduction are the neighbours in memory."""
        rule, operand = self._rule[node], node.args[0]
        assert isinstance(rule, Reduction) and isinstance(operand, fx.Node)
        info, dims = self.info(operand), rule.dims(node)
        sides = zip(info.shape, info.stride)
        return any(s == ix.ONE != n and d not in dims for d, (n, s) in enumerate(sides))

    def has_columns(self, node: fx.Node) -> bool:
        """Whether the last dimension of a tensor is not its rows."""
        info = self.info(node)
        return len(info.shape) > 1 and ix.ONE not in (info.shape[-1], info.stride[-1])

    def _find_volatile(self) -> None:
        """Note what calls write into: such a value is read from memory, at its place in order."""
        for node in self.nodes:
            if is_mutable(node) and node.target is not COPY:
                self.volatile.update(self.written(node))

    def written(self, node: fx.Node) -> list[fx.Node]:
        """What lies behind the arguments that a call writes into."""
        schema = getattr(node.target, "_schema", None)
        found: list[fx.Node] = []
        if node.target is _BATCH_NORM and node.args[5]:  # its schema does not tell
            found += [self.root(arg) for arg in node.args[3:5] if isinstance(arg, fx.Node)]
        for position, spec in enumerate(schema.arguments if schema is not None else ()):
            if spec.alias_info is None or not spec.alias_info.is_write:
                continue
            arg = node.args[position] if position < len(node.args) else node.kwargs.get(spec.name)
            for value in arg if isinstance(arg, (tuple, list)) else (arg,):
                if isinstance(value, fx.Node):
                    found.append(self.root(value))
        return found

    def fusable(self, node: fx.Node) -> bool:
        """Whether a kernel may use the value it computed instead of what is in memory."""
        return node not in self.volatile and not isinstance(self._rule[node], Scatter)

    def _find_materialised(self) -> None:
        for node in self.nodes:
            if node in self.dead or node.op == "placeholder" or node.op == "get_attr":
                continue
            called = self._rule[node] is None and node.target is not operator.getitem
            if node.op == "output" or called:
                if node.target is COPY or self.is_split(node):
                    continue  # decided when it is fused; only its pieces count
                for arg in node.all_input_nodes:
                    self.require(arg)
            elif isinstance(self._rule[node], Scatter):
                self.require(self.base(node))

    def _count_eras(self) -> None:
        """Number the stretches between calls that do real work through aten."""
        era = 0
        for node in self.nodes:
            self._era[node] = era
            if node.op != "call_function" or self._rule[node] is not None or node in self.dead:
                continue
            if node.target is not operator.getitem and not self.is_split(node):
                era += 1

    def require(self, node: fx.Node) -> None:
        """Note that ``node`` must exist in memory as a tensor of its own."""
        self.changed = True
        root = self.root(node)
        if node is not root and self.base(node) is not root and self._own_memory(root):
            # Several views in a row of memory that is laid out as planned are one call.
            self.called_views.add(node)
            self._short[node] = root
            self.materialised.add(root)
            return
        while isinstance(self._rule[node], View):
            self.called_views.add(node)
            node = self.base(node)
        self.materialised.add(node)

    def _own_memory(self, node: fx.Node) -> bool:
        """Whether the node's memory surely starts its storage and has its fake's strides."""
        info = self.try_info(node)
        if info is None or info.offset != ix.ZERO or node.op != "call_function":
            return False
        lowered = isinstance(self._rule[node], Pointwise | Reduction | Scatter)
        return lowered or node.target in GEMMS

    def called_on(self, view: fx.Node) -> fx.Node:
        """The tensor that a view's call takes: its base, or what lies behind several views."""
        return self._short.get(view) or self.base(view)

    def _find_inlined(self, node: fx.Node, inline: bool) -> None:
        rule = self._rule[node]
        if isinstance(rule, View):
            base = self.base(node)
            self._leaves[node] = self._leaves[base]
            self._cost[node] = self._cost[base]
            return
        self._leaves[node] = {node: 1}
        self._cost[node] = 0
        if not isinstance(rule, Pointwise) or not self.volatile.isdisjoint(self._behind(node)):
            return
        if node in self.placed or node in self.wholes:
            return
        fails = self._may_fail(node)
        if not inline or (fails and not self._seen_whole(node)):
            return  # a reader may look at some of its points only
        cost, leaves = rule.cost + self.told_apart(node), dict[fx.Node, int]()
        size = estimate(self.info(node).numel)
        for arg in node.all_input_nodes:
            if self.is_tensor(arg):
                # What is small beside the node (one value a row) is no reason to store the node,
                # unless it is a piece: each point of a GPU's kernel computes those of all.
                beside = MUCH_LARGER * estimate(self.info(arg).numel) <= size
                cost += 0 if beside and node.target not in JOINED else self._cost[arg]
                leaves.update(self._leaves[arg])
        if rule.moves and node.target not in JOINED and cost > DEEPEST:
            self.materialised.add(node)
        if cost * inlining.windows_over(self, node) > WINDOW_COST:
            return
        cheap = rule.creation
        if not cheap and node not in self.materialised and not fails:
            cheap = inlining.saves_memory(self, node, leaves, cost)
            if not cheap and self.again and inlining.saves_half(self, node, leaves, cost):
                cheap = self.computes_again = True
        if not cheap and node not in self.materialised:
            cheap = inlining.small_beside_readers(self, node, cost, leaves)
        if fails:
            if cheap:
                self._failing.add(node)
        elif not cheap and node not in self.materialised and cost <= MOVED_COST:
            cheap = inlining.looked_up_only(self, node, size)
        alone = not fails and node not in self.materialised
        limit = inlining.budget_in_reader(self, node) if alone else 0
        if limit and (not cheap or limit == PADDED_COST):
            tree = self._own_producers(node, limit)
            if tree is not None:
                for member in sorted({node, *tree}, key=self.number):
                    self._inline_now(member)
                return
        if cheap:
            self.inline.add(node)
            self._leaves[node] = leaves
            self._cost[node] = cost

    def told_apart(self, node: fx.Node) -> int:
        """How many parts each point tells apart, if many; loops in C are cut between a few."""
        parts = len(node.all_input_nodes) if node.target in JOINED else 0
        few = FEW_PARTS if self.device(node).type in inlining.FAST else MANY_PIECES
        return parts if parts > few else 0

    def _may_fail(self, node: fx.Node) -> bool:
        """Whether a kernel that computes ``node`` at a point may raise there."""
        rule = self._rule[node]
        if isinstance(rule, Pointwise) and self.body(node).may_fail:
            return True
        inputs = node.all_input_nodes if self._failing else ()
        return any(self.is_tensor(arg) and self.root(arg) in self._failing for arg in inputs)

    def _seen_whole(self, node: fx.Node) -> bool:
        """Whether each reader looks at all points of ``node``, before any call that may write."""
        for user in self.users(node):
            rule = self._rule[user]
            if isinstance(rule, View):
                whole = user.target in WHOLE_VIEWS and self._seen_whole(user)
            else:
                whole = isinstance(rule, Pointwise) and not (rule.moves or rule.window)
            if not whole or not self.same_era(user, node):
                return False
        return True

    def _behind(self, node: fx.Node) -> set[fx.Node]:
        """The node and what lies behind its operands."""
        inputs = [self.root(a) for a in node.all_input_nodes if self.is_tensor(a)]
        return {node, *inputs}

    def _inline_now(self, node: fx.Node) -> None:
        """Make ``node`` (or a view on the way to it) one that is recomputed by its reader."""
        rule = self._rule[node]
        leaves: dict[fx.Node, int] = {}
        cost = rule.cost if isinstance(rule, Pointwise) else 0
        for arg in [self.base(node)] if isinstance(rule, View) else node.all_input_nodes:
            if self.is_tensor(arg):
                cost += self._cost[arg]
                leaves.update(self._leaves[arg])
        if isinstance(rule, Pointwise):
            self.inline.add(node)
        self._leaves[node] = leaves
        self._cost[node] = cost

    def _own_producers(self, node: fx.Node, limit: int) -> set[fx.Node] | None:
        """Pointwise nodes (and views between) that only ``node`` reads; None when too costly.

        What is read at several places, as the neighbours in a stencil are, is computed at each.
        """
        tree: set[fx.Node] = {node}
        places: dict[fx.Node, frozenset[tuple[fx.Node, ...]]] = {node: frozenset({()})}
        total = 0
        pending = [node]
        while pending:
            reader = pending.pop()
            rule = self._rule[reader]
            if isinstance(rule, Pointwise):
                total += rule.cost * (len(places[reader]) - (reader in self.inline))
            if total > limit:
                return None
            for arg in reader.all_input_nodes:
                rule = self._rule[arg]
                if arg in tree or not isinstance(rule, Pointwise | View):
                    continue
                if arg in self.materialised or arg in self.called_views:
                    continue
                if self._may_fail(arg):
                    continue
                if self._era[arg] == self._era[node] and tree.issuperset(self.users(arg)):
                    tree.add(arg)
                    pending.append(arg)
                    places[arg] = self._places(arg, places)
        return tree

    def _places(
        self, node: fx.Node, known: dict[fx.Node, frozenset[tuple[fx.Node, ...]]]
    ) -> frozenset[tuple[fx.Node, ...]]:
        """Where ``node`` is read, as chains of the views and moves that lead there."""
        found: set[tuple[fx.Node, ...]] = set()
        for user in self.users(node):
            rule = self._rule[user]
            moves = isinstance(rule, View) or (isinstance(rule, Pointwise) and rule.moves)
            found |= {(*place, user) if moves else place for place in known[user]}
        return frozenset(found)


def _call_signature(node: fx.Node) -> object:
    """What the body of a call depends on, with tensors for their shapes and dtypes; None where
    that is not plain (symbolic sizes, operands that are no tensors)."""
    inputs = {arg: number for number, arg in enumerate(node.all_input_nodes)}

    def of(value: object) -> object:
        if isinstance(value, fx.Node):
            tensor = value.meta.get("val")
            if not _is_plain(tensor):
                raise UnrepresentableError
            return inputs[value], tensor.shape, tensor.dtype
        if isinstance(value, (list, tuple)):
            return tuple(map(of, value))
        return type(value), repr(value)  # 1 is not 1.0, and 0.0 not -0.0

    result = node.meta.get("val")
    results = result if isinstance(result, (tuple, list)) else (result,)
    if node.target is operator.getitem or not all(map(_is_plain, results)):
        return None
    try:
        kwargs = tuple((name, of(value)) for name, value in node.kwargs.items())
        own = tuple((r.shape, r.dtype) for r in results)
        return node.target, own, of(node.args), kwargs
    except UnrepresentableError:
        return None


def _is_plain(value: object) -> TypeGuard[torch.Tensor]:
    """Whether a value is a tensor whose sizes are numbers."""
    return isinstance(value, torch.Tensor) and all(type(n) is int for n in value.shape)


def is_mutable(node: fx.Node) -> bool:
    """Whether a call writes into its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def only_checks(node: fx.Node) -> bool:
    """Whether a call gives nothing, and so is there to raise or to write."""
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns


def has_effect(node: fx.Node) -> bool:
    """Whether a call matters beyond its result."""
    if node.op != "call_function":
        return node.op != "get_attr"
    target = node.target
    if target in SPLITS or target is operator.getitem or target in keyed.PURE:
        return False
    if isinstance(target, torch._ops.OpOverload):
        draws = torch.Tag.nondeterministic_seeded in target.tags
        if draws or is_mutable(node) or only_checks(node):
            return True
        return target.namespace not in ("aten", "prims")
    return getattr(target, "__module__", "") not in ("_operator", "math")


def _names(facts: Facts) -> dict[fx.Node, str]:
    """Locals of the wrapper and numbers of kernels: node names, but a size input bears its
    symbol's name, and what is called like a symbol has another name."""
    names = {node: node.name for node in facts.nodes}
    symbols: dict[str, fx.Node | None] = {}
    for node in facts.nodes:
        index = None if facts.is_tensor(node) else facts.scalar_index(node)
        if node.op == "placeholder" and type(index) is ix.Sym:
            if symbols.setdefault(index.name, node) is node:
                names[node] = index.name
    for node in facts.nodes:
        info = facts.try_info(node) if facts.is_tensor(node) else None
        for size in () if info is None else (*info.shape, *info.stride):
            symbols.update((name, None) for name in ix.symbols(size) if name not in symbols)
    taken = {*names.values(), *symbols}
    for node, name in names.items():
        if name in symbols and symbols[name] is not node:
            while name in taken:
                name += "_"
            taken.add(name)
            names[node] = name
    return names
