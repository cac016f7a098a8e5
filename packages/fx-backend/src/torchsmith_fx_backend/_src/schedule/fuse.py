"""Fusion: put computed nodes into nests so that the fewest bytes move.

One walk over the graph in order. A node joins the nest that computes its largest operand when it
can be walked there at coordinates at which every operand of that nest is at hand (*vertical*
fusion); otherwise it opens a nest of its own. A node with operands in two independent nests joins
both into one. At the end nests that read the same memory at the same places are joined, and small
ones that only cost a launch (*horizontal* fusion). A join that would make a cycle through an extern
call is refused: each unit knows the units it depends on as the bits of one integer.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import may_fail
from torchsmith_fx_backend._src.loops.canonical import Draft, finish
from torchsmith_fx_backend._src.loops.nest import Computed, Fit, Nest
from torchsmith_fx_backend._src.loops.registry import (
    Coords,
    Geometry,
    Pointwise,
    Reduction,
    Scatter,
    View,
)
from torchsmith_fx_backend._src.loops.sizes import estimate
from torchsmith_fx_backend._src.loops.views import reshape
from torchsmith_fx_backend._src.schedule import serial
from torchsmith_fx_backend._src.schedule.facts import (
    COPY,
    COPY_INTO,
    Facts,
    has_effect,
    is_mutable,
    only_checks,
)
from torchsmith_fx_backend._src.schedule.join import join_nests
from torchsmith_fx_backend._src.schedule.places import Place

MAX_BODY = 600  # scalar operations in one kernel, about
# The same where a launch is dear: triton takes 0.25 s for 130, 0.75 for 310 and 6 for 740.
MAX_TILED = 256
MAX_READS = 24  # different buffers read by one kernel
NEIGHBOURS = 4  # how many nests back a launch may be shared ...
SMALL_SPACE = 1 << 20  # ... when both have at most so many points
QUICK_LAUNCH = frozenset({"cpu"})  # devices where a launch is no more than a call of a function
FEW_READ = 64  # times as many points as elements of a value say that sharing its reads saves little
GATHERED_SPACE = 1 << 22  # points of nests that share a launch across extern calls, and ...
GATHERED_BYTES = 1 << 25  # ... what all of them may store
LONG_BODY = 60  # scalar operations that few and long rows do not do for each of their elements


@dataclass(slots=True, eq=False)
class Unit:
    """One step of the schedule: a nest, or a node called through aten.

    Attributes:
        bit: this unit's number in dependency masks.
        deps: every unit this one depends on, transitively.
        last: position of its last node in the graph.
        era: number of extern calls before it in the graph.
        mutates: for in-place copies: input node -> the ``copy_`` node that writes it.
        placed: what is stored as a part of another value.
    """

    bit: int
    nest: Nest | None
    node: fx.Node | None
    deps: int = 0
    last: int = 0
    era: int = 0
    mutates: dict[fx.Node, fx.Node] = field(default_factory=dict)
    draft: Draft | None = None
    placed: dict[fx.Node, Place] = field(default_factory=dict)


class Fuser:
    """Groups the nodes of a graph into units.

    Args:
        facts: the graph.
        reach: how many extern calls may lie between nodes that share a kernel; None for any
            number, -1 for no fusion. Smaller values hold less memory at once.
        share: whether to join nests that do not depend on each other.
        gather: whether to do so across extern calls, where their order is free.
        largest: scalar operations in one kernel, about.
    """

    def __init__(
        self,
        facts: Facts,
        reach: int | None = None,
        share: bool = True,
        gather: bool = False,
        largest: int = MAX_BODY,
    ) -> None:
        self.facts = facts
        self.reach = reach
        self.share = share
        self.gather = gather
        self.largest = largest
        self.units: list[Unit] = []  # without those that others took in
        self._numbered = 0
        self._awaited = 0  # every unit that another one depends on
        self.unit_of: dict[fx.Node, Unit] = {}
        self._writer_of: dict[fx.Node, Unit] = {}  # who writes an input at the end of the graph
        self._callers: dict[fx.Node, list[Unit]] = {}  # aten calls that read a value's memory
        self._era = 0
        self._ordered_effect: Unit | None = None

    # ------------------------------------------------------------------------------- walk

    def run(self) -> list[Unit]:
        """Group all nodes; the units in execution order."""
        facts = self.facts
        copies: list[fx.Node] = []
        for node in facts.nodes:
            if node in facts.dead or node.op in ("placeholder", "get_attr", "output"):
                continue
            rule = facts.rule(node)
            parent = facts.is_output_of(node)
            if parent is not None:
                self._take_output(node, parent)
            elif node.target is COPY:
                copies.append(node)
            elif isinstance(rule, View):
                if node in facts.called_views:
                    self._call(node)
            elif isinstance(rule, Pointwise | Reduction | Scatter) and node not in facts.wholes:
                if not facts.inlined(node) or node in facts.materialised:
                    self._place(node, rule)
            elif not facts.is_split(node) and not self._is_symbolic(node):
                self._call(node)
        # All that is written back is computed from inputs as they were before the first write.
        for node in copies:
            self._open(node.args[1])
        checks = [u for u in self.units if u.node and only_checks(u.node)]
        raising = [u for u in self.units if u.nest and may_fail(u.nest.nodes)]
        for node in copies:
            self._write_back(node, checks, raising)
        if self.share:
            self._join_siblings()
        if self.gather:
            self._gather()
        return self._close(self._order())

    def _is_symbolic(self, node: fx.Node) -> bool:
        """Whether a node is a size that is known as an expression of the graph's symbols."""
        value = node.meta.get("val")
        if self.facts.is_tensor(node) or value is None or isinstance(value, (tuple, list)):
            return False
        if any(self.facts.is_tensor(a) for a in node.all_input_nodes):
            name = getattr(node.target, "__name__", "")
            if not name.startswith(("sym_size", "sym_stride", "sym_numel")):
                return False
            return self.facts.scalar_index(node) is not None
        index = self.facts.scalar_index(node)  # what is a symbol itself gives that its number
        return index is not None and type(index) is not ix.Sym

    def _new_unit(self, nest: Nest | None, node: fx.Node | None) -> Unit:
        unit = Unit(self._numbered, nest, node, era=self._era)
        self._numbered += 1
        self.units.append(unit)
        if node is not None:
            tensors = [a for a in node.all_input_nodes if self.facts.is_tensor(a)]
            for root in dict.fromkeys(map(self.facts.root, tensors)):
                self._callers.setdefault(root, []).append(unit)
        return unit

    def _take_output(self, node: fx.Node, parent: fx.Node) -> None:
        unit = self.unit_of[parent]
        self.unit_of[node] = unit
        if unit.nest is not None:
            unit.nest.add_output(node, parent, int(node.args[1]))  # type: ignore[arg-type]

    # ------------------------------------------------------------------------------ extern

    def _call(self, node: fx.Node) -> None:
        facts = self.facts
        if node.target is operator.getitem and node.args[0] in self.unit_of:
            self.unit_of[node] = self.unit_of[node.args[0]]  # type: ignore[index]
            return
        unit = self._new_unit(None, node)
        self.unit_of[node] = unit
        unit.last = facts.number(node)
        is_view = isinstance(facts.rule(node), View)
        sources = [facts.called_on(node)] if is_view else node.all_input_nodes
        for arg in sources:
            self._depend(unit, arg)
        if not is_view and node not in facts.wholes:
            self._era += 1
            if has_effect(node):
                # Effects keep their order, and writes come after every earlier reader.
                for other in self.units if is_mutable(node) else ():
                    if other is not unit:
                        self._add_deps(unit, other)
                if self._ordered_effect is not None:
                    self._add_deps(unit, self._ordered_effect)
                self._ordered_effect = unit
                for value in facts.written(node):
                    self.unit_of[value] = unit  # from here on it is this call's result

    def _depend(self, unit: Unit, value: fx.Node) -> None:
        producer = self.unit_of.get(value)
        if producer is not None and producer is not unit:
            self._add_deps(unit, producer)

    def _add_deps(self, unit: Unit, producer: Unit) -> None:
        more = (producer.deps | 1 << producer.bit) & ~unit.deps
        if not more:
            return
        unit.deps |= more
        self._awaited |= more
        mark = 1 << unit.bit
        if not self._awaited & mark:
            return
        for other in self.units:
            if other.deps & mark:
                other.deps |= more

    # ---------------------------------------------------------------------------- vertical

    def _place(self, node: fx.Node, rule: Computed) -> None:
        for unit in self._hosts(node):
            if self._try_join(unit, node, rule):
                return
        nest = Nest(self.facts, self.facts.device(node))
        unit = self._new_unit(nest, None)
        at = nest.fresh_axes(self.facts.space(node, rule))
        fit = nest.fit(node, rule, at)
        if fit is None:  # an operand is on another device
            raise RefusedError(node)
        nest.join(node, rule, fit)
        self._settle(unit, node, fit.reads)

    def _hosts(self, node: fx.Node) -> list[Unit]:
        """Nests that compute something ``node`` reads; the one that saves most bytes first."""
        saved: dict[Unit, int] = {}
        for arg in filter(self.facts.is_tensor, node.all_input_nodes):
            for leaf in self.facts.leaves(arg):
                unit = self.unit_of.get(leaf)
                if unit is not None and unit.nest is not None:
                    saved[unit] = saved.get(unit, 0) + self.facts.info(leaf).bytes()
        return sorted(saved, key=lambda u: (-saved[u], -u.bit))

    def _near(self, unit: Unit, era: int) -> bool:
        return self.reach is None or era - unit.era <= self.reach

    def _try_join(self, unit: Unit, node: fx.Node, rule: Computed) -> bool:
        nest = unit.nest
        assert nest is not None
        if not self._near(unit, self._era) or self.facts.device(node) != nest.device:
            return False
        if len(nest.nodes) > self._most(nest) or len(nest.reads) > MAX_READS:
            return False
        for at in self._candidates(nest, node, rule):
            fit = nest.fit(node, rule, at)
            if fit is None:
                continue
            reads = (*fit.reads, *self._numbers(node))
            if self._makes_cycle(unit, reads) or self._too_serial(nest, node, rule, fit):
                return False
            if not nest.reduced and len(nest.nodes) > LONG_BODY:
                if self._leaves_idle(nest, node, rule):
                    return False
            if self.facts.told_apart(node) and serial.leaves_idle(nest):
                return False
            nest.join(node, rule, fit)
            self._settle(unit, node, fit.reads)
            for read in fit.reads:
                if read in nest.reads:
                    self._join_producer(unit, read)
            return True
        return False

    def _settle(self, unit: Unit, node: fx.Node, fresh: Sequence[fx.Node]) -> None:
        self.unit_of[node] = unit
        unit.last = max(unit.last, self.facts.number(node))
        unit.era = max(unit.era, self._era)
        for number in self._numbers(node):
            self._depend(unit, number)
        for read in fresh:
            self._depend(unit, read)
            writer = self._writer_of.get(read)
            if writer is not None and writer is not unit:
                self._add_deps(writer, unit)

    def _numbers(self, node: fx.Node) -> list[fx.Node]:
        """Numbers that calls compute and ``node`` reads, itself or in what is inlined in it."""
        found: list[fx.Node] = []
        waiting = node.all_input_nodes
        while waiting:
            arg = waiting.pop()
            if self.facts.is_tensor(arg):
                apart = arg in self.unit_of and not self.facts.inlined(arg)
                waiting += () if apart else arg.all_input_nodes
            elif arg in self.unit_of:
                found.append(arg)
        return found

    def _makes_cycle(self, unit: Unit, reads: Sequence[fx.Node]) -> bool:
        for read in reads:
            producer = self.unit_of.get(read)
            if producer is not None and (producer is unit or producer.deps >> unit.bit & 1):
                return True
            writer = self._writer_of.get(read)
            if writer is not None and unit.deps >> writer.bit & 1:
                return True
        return False

    def _too_serial(self, nest: Nest, node: fx.Node, rule: Computed, fit: Fit) -> bool:
        """Whether too few, long rows would be walked again after their reduction, or rows that are
        not held once more."""
        if isinstance(rule, Reduction) and serial.walks_often(nest):
            return self._reduced_before(nest, node)
        if not serial.leaves_idle(nest, columns=True):  # a look at sizes alone
            return False
        axes = set(nest.reduced or ())
        stays = not any(axes & ix.variables(x) for place in fit.places for x in place)
        if stays and not isinstance(rule, Reduction):
            return False
        columns = any(self.facts.has_columns(read) for read in fit.reads)
        return serial.leaves_idle(nest, columns=columns) and self._reduced_before(nest, node)

    def _leaves_idle(self, nest: Nest, node: fx.Node, rule: Computed) -> bool:
        """Whether ``node`` reduces so few and long rows that most of a GPU has nothing to do: what
        takes long to compute for each of their elements is better off in a kernel of its own."""
        device = nest.device.type
        if not isinstance(rule, Reduction) or device not in serial.ROWS:
            return False
        columns = self.facts.reduces_columns(node)
        return serial.too_few(device, *self.facts.rows(node, rule), columns=columns)

    def _reduced_before(self, nest: Nest, node: fx.Node) -> bool:
        """Whether what ``node`` is computed from is partly a reduction in ``nest``."""
        seen: set[fx.Node] = set()
        waiting = [node]
        while waiting:
            for arg in waiting.pop().all_input_nodes:
                if arg in seen:
                    continue
                seen.add(arg)
                if arg in self.unit_of and arg not in nest.members:
                    continue
                if isinstance(self.facts.rule(arg), Reduction):
                    return True
                waiting.append(arg)
        return False

    def _candidates(self, nest: Nest, node: fx.Node, rule: Computed) -> Iterator[Coords]:
        """Coordinates at which ``node`` might be walked in ``nest``, likeliest first."""
        facts = self.facts
        shape = facts.space(node, rule)
        tried: list[Coords] = []
        for at in nest.seen.get(shape, ()):
            tried.append(at)
            yield at
        for arg in node.all_input_nodes:
            if facts.is_tensor(arg) and facts.info(arg).shape == shape:
                pushed = self._forward(nest, arg, 0)
                if pushed is not None and pushed not in tried:
                    tried.append(pushed)
                    yield pushed
        if tried:
            return
        total = ix.product(shape)
        for seen, ats in list(nest.seen.items()):
            if ix.product(seen) == total and total == nest.numel():
                yield reshape(ats[0], seen, shape, nest.sizes)
                return

    def _forward(self, nest: Nest, node: fx.Node, depth: int) -> Coords | None:
        """Coordinates of a view or inlined node, followed from a member of ``nest``."""
        member = nest.members.get(node)
        if member is not None:
            return None if member.walked else member.at
        facts, rule = self.facts, self.facts.rule(node)
        if depth > 20:
            return None
        moves = isinstance(rule, View) or (isinstance(rule, Pointwise) and facts.inlined(node))
        push = rule.push if moves else None  # type: ignore[union-attr]
        if push is not None:
            base = facts.base(node)
            at = self._forward(nest, base, depth + 1)
            if at is None:
                return None
            shapes = facts.info(base).shape, facts.info(node).shape
            return push(Geometry(node, *shapes, nest.sizes), at)
        if isinstance(rule, Pointwise) and facts.inlined(node) and not rule.moves:
            shape = facts.info(node).shape
            for arg in node.all_input_nodes:
                if facts.is_tensor(arg) and facts.info(arg).shape == shape:
                    at = self._forward(nest, arg, depth + 1)
                    if at is not None:
                        return at
        return None

    # ------------------------------------------------------------------------------- joins

    def _independent(self, a: Unit, b: Unit) -> bool:
        return not (a.deps >> b.bit & 1 or b.deps >> a.bit & 1)

    def _most(self, nest: Nest) -> int:
        """How many scalar operations what is joined with ``nest`` may have."""
        return self.largest if nest.device.type in QUICK_LAUNCH else min(self.largest, MAX_TILED)

    def _join_producer(self, unit: Unit, read: fx.Node) -> None:
        """Take in the nest that computes ``read``, when nothing else stands between."""
        other = self.unit_of.get(read)
        if other is None or other.nest is None or other is unit:
            return
        nest = unit.nest
        assert nest is not None
        ats = nest.reads[read]
        if len(ats) != 1 or len(nest.nodes) + len(other.nest.nodes) > self._most(nest):
            return
        if other.nest.members[read].at is None or not self._near(other, self._era):
            return
        # ``unit`` depends on ``other`` by this very read; any longer path forbids the join.
        through = unit.deps & ~other.deps & ~(1 << other.bit)
        if any(u.deps >> other.bit & 1 and through >> u.bit & 1 for u in self.units):
            return
        if len(other.nest.nodes) > LONG_BODY and serial.leaves_idle(nest):
            return
        merged = join_nests(nest, other.nest, next(iter(ats)), other.nest.members[read].at)
        if merged is not None:
            self._absorb(unit, other, merged)

    def _absorb(self, unit: Unit, other: Unit, merged: Nest) -> bool:
        """Make one unit of two, unless a write into an input would then come too early, or too few
        rows be walked again."""
        if not self._writes_last(merged, {**unit.mutates, **other.mutates}):
            return False
        if serial.walks_again(merged):
            return False
        unit.nest = merged
        assert other.nest is not None
        for node in (*other.nest.members, *other.nest.tuples):
            if self.unit_of.get(node) is other:  # no call has written into it since
                self.unit_of[node] = unit
        both = 1 << unit.bit | 1 << other.bit
        unit.deps = (unit.deps | other.deps) & ~both
        unit.last, unit.era = max(unit.last, other.last), max(unit.era, other.era)
        unit.mutates.update(other.mutates)
        self._writer_of.update(dict.fromkeys(other.mutates, unit))
        other.nest = None
        self.units.remove(other)
        self._awaited |= both
        for third in self.units:
            if third is not unit and third.deps & both:
                third.deps |= unit.deps | both
        return True

    def _join_siblings(self) -> None:
        """Horizontal fusion: nests that read the same value at the same places."""
        readers: dict[fx.Node, list[Unit]] = {}
        for unit in list(self.units):
            if unit.nest is None:
                continue
            for read in list(unit.nest.reads):
                if self._join_with_reader(unit, read, readers.setdefault(read, [])):
                    break
            else:
                for read in unit.nest.reads:
                    readers.setdefault(read, []).append(unit)

        small = [
            u for u in self.units if u.nest is not None and u.nest.reduced is None and not u.mutates
        ]
        for number, unit in enumerate(small):
            for host in small[max(0, number - NEIGHBOURS) : number]:
                if self._join_neighbours(host, unit):
                    break

    def _join_neighbours(self, host: Unit, unit: Unit) -> bool:
        """Save a launch: two small pointwise nests over one space, with nothing between them."""
        a, b = host.nest, unit.nest
        if a is None or b is None or host.era != unit.era:  # another one took it in
            return False
        if list(a.sizes.values()) != list(b.sizes.values()) or a.device != b.device:
            return False
        return estimate(a.numel()) <= SMALL_SPACE and self._share(host, unit)

    def _gather(self) -> None:
        """Save launches where a launch is dear: nests over one space that nothing has to precede
        (casts of parameters), or that nothing waits for (casts and sums of gradients), or neither
        (counters of calls)."""
        awaited = 0
        for unit in self.units:
            awaited |= unit.deps
        hosts: dict[tuple[object, ...], tuple[Unit, int]] = {}
        for unit in list(self.units):
            nest = unit.nest
            if nest is None or nest.device.type in QUICK_LAUNCH:
                continue
            first, awaits = unit.deps == 0, awaited >> unit.bit & 1
            free = first and not awaits if unit.mutates else first or not awaits
            if not free or estimate(nest.numel()) > GATHERED_SPACE:
                continue
            kept = [n for n in nest.members if n in self.facts.materialised]
            stored = sum(self.facts.info(n).bytes() for n in kept)
            # What a reduction reads is large and would be held: such ones wait for no other call.
            era = unit.era if nest.reduced else None
            axes = tuple((size, a in (nest.reduced or ())) for a, size in nest.sizes.items())
            key = (nest.device, axes, first, era, not unit.mutates)
            host, held = hosts.get(key, (None, 0))
            if host is not None and held + stored <= GATHERED_BYTES and self._share(host, unit):
                hosts[key] = host, held + stored
            else:
                hosts[key] = unit, stored

    def _share(self, host: Unit, unit: Unit) -> bool:
        """Make one launch of two independent nests over one space."""
        a, b = host.nest, unit.nest
        assert a is not None and b is not None
        if len(a.nodes) + len(b.nodes) > self.largest // 4 or not self._independent(host, unit):
            return False
        if len(a.reads) + len(b.reads) > MAX_READS:
            return False
        merged = join_nests(a, b, (), ())
        return merged is not None and self._absorb(host, unit, merged)

    def _join_with_reader(self, unit: Unit, read: fx.Node, readers: list[Unit]) -> bool:
        nest = unit.nest
        assert nest is not None
        ats = nest.reads[read]
        # What is small beside the nest saves a launch alone, and walks of two memories mixed in
        # one may cost more than that.
        small = FEW_READ * estimate(self.facts.info(read).numel) < estimate(nest.numel())
        if small and nest.device.type in QUICK_LAUNCH:
            return False
        for host in readers:
            assert host.nest is not None
            theirs = host.nest.reads.get(read)
            if theirs is None or len(theirs) != 1 or len(ats) != 1 or host.era != unit.era:
                continue
            if host.nest.device != nest.device or not self._independent(host, unit):
                continue
            if len(nest.nodes) + len(host.nest.nodes) > self.largest // 2:
                continue
            merged = join_nests(host.nest, nest, next(iter(theirs)), next(iter(ats)))
            if merged is not None and self._absorb(host, unit, merged):
                return True
        return False

    # --------------------------------------------------------------------------- mutation

    def _write_back(self, node: fx.Node, checks: list[Unit], raising: list[Unit]) -> None:
        """``copy_(input, value)``: store straight into the input where that is safe.

        Args:
            node: the ``copy_``.
            checks: calls that do nothing but raise, perhaps.
            raising: nests that may raise.
        """
        target, source = node.args[0], node.args[1]
        assert isinstance(target, fx.Node)
        readers = [u for u in self.units if u.nest and target in u.nest.reads]
        readers += self._callers.get(target, ())
        # What may raise comes before a write that the caller would see nevertheless.
        failing = list(checks)
        if self._lowerable(node, target, source):
            assert isinstance(source, fx.Node)
            failing += [u for u in raising if u.nest]
            for unit in self._hosts(node) or self._opened(source):
                others = [u for u in dict.fromkeys((*readers, *failing)) if u is not unit]
                if any(u.deps >> unit.bit & 1 for u in others):
                    continue
                if self._try_join(unit, node, COPY_INTO) and self._claim(unit, node, target):
                    for other in others:
                        self._add_deps(unit, other)
                    return
        self._copy_by_aten(node, [*readers, *failing])

    def _open(self, source: object) -> None:
        """Make a nest for a value that is only copied, and that no nest computes yet."""
        if not isinstance(source, fx.Node) or not self.facts.is_tensor(source):
            return
        root = self.facts.root(source)
        rule = self.facts.rule(root)
        if root not in self.unit_of and isinstance(rule, Pointwise | Reduction):
            self._place(root, rule)

    def _opened(self, source: fx.Node) -> list[Unit]:
        """The nest that computes a copied value."""
        unit = self.unit_of.get(self.facts.root(source))
        return [] if unit is None or unit.nest is None else [unit]

    def _lowerable(self, node: fx.Node, target: fx.Node, source: object) -> bool:
        info = self.facts.try_info(target)
        if node in self.facts.refused:
            return False
        if target.op != "placeholder" or info is None or not isinstance(source, fx.Node):
            return False
        other = self.facts.try_info(source)
        return other is not None and other.device == info.device and info.dense()

    def _claim(self, unit: Unit, node: fx.Node, target: fx.Node) -> bool:
        """Whether the nest may store into ``target`` although it (perhaps) reads it, too."""
        nest = unit.nest
        assert nest is not None
        if not self._writes_last(nest, {**unit.mutates, target: node}):
            del nest.members[node]
            del self.unit_of[node]
            return False
        unit.mutates[target] = node
        self._writer_of[target] = unit
        return True

    def _writes_last(self, nest: Nest, mutates: dict[fx.Node, fx.Node]) -> bool:
        """Whether each written input is read only where, and no later than, it is written, and
        whether it is sure that the launch does not raise."""
        if not mutates:
            return True
        if may_fail(nest.nodes):
            return False
        number = self.facts.number
        targets = {copy: target for target, copy in mutates.items()}
        stores = [
            (number(node), member, self.facts.info(targets.get(node, node)))
            for node, member in nest.members.items()
        ]
        draft = finish(nest, stores)
        loads = draft.loads()
        return all(
            number(target) not in loads or draft.may_share(number(target), number(copy))
            for target, copy in mutates.items()
        )

    def _copy_by_aten(self, node: fx.Node, readers: list[Unit]) -> None:
        source = node.args[1]
        if isinstance(source, fx.Node) and self.facts.is_tensor(source):
            self.facts.require(source)
            view: fx.Node = source
            chain: list[fx.Node] = []
            while isinstance(self.facts.rule(view), View):
                chain.append(view)
                view = self.facts.base(view)
            for step in reversed(chain):
                if step not in self.unit_of:
                    self._call(step)
        unit = self._new_unit(None, node)
        self.unit_of[node] = unit
        unit.last = self.facts.number(node)
        for arg in node.all_input_nodes:
            self._depend(unit, arg)
        for reader in readers:
            self._add_deps(unit, reader)
        target = node.args[0]
        assert isinstance(target, fx.Node)
        self._writer_of[self.facts.root(target)] = unit

    # ------------------------------------------------------------------------------ close

    def _close(self, order: list[Unit]) -> list[Unit]:
        """Find what each nest must store, last unit first; drop nests that store nothing."""
        facts = self.facts
        wanted = {facts.number(node) for node in facts.materialised}
        kept: list[Unit] = []
        wanted.update(map(facts.number, facts.placed))
        for unit in reversed(order):
            nest = unit.nest
            if unit.node in facts.wholes:
                continue  # its parts are stored there
            if nest is not None:
                stores = []
                copied = {copy: target for target, copy in unit.mutates.items()}
                for node, member in nest.members.items():
                    number = facts.number(node)
                    if node in copied:
                        stores.append((number, member, facts.info(copied[node])))
                    elif node in facts.placed:
                        place = unit.placed[node] = facts.placed[node]
                        stores.append((number, place.moved(member), facts.info(place.whole)))
                    elif number in wanted:
                        stores.append((number, member, facts.info(node)))
                if not stores:
                    continue
                unit.draft = finish(nest, stores)
                wanted.update(unit.draft.loads())
            kept.append(unit)
        return kept[::-1]

    def _order(self) -> list[Unit]:
        """Execution order: each unit where its last node stood, or before its first reader."""
        by_bit = {u.bit: u for u in self.units}
        done: list[Unit] = []
        emitted = 0
        waiting = sorted(by_bit.values(), key=lambda u: u.last)
        rank = {u: i for i, u in enumerate(waiting)}
        for unit in waiting:
            # Dependencies are transitive masks, so sorting by their number is a valid order.
            missing = [by_bit[b] for b in bits(unit.deps & ~emitted) if b in by_bit]
            for needed in sorted(missing, key=lambda u: (u.deps.bit_count(), rank[u])):
                emitted |= 1 << needed.bit
                done.append(needed)
            if not emitted >> unit.bit & 1:
                emitted |= 1 << unit.bit
                done.append(unit)
        return done


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class RefusedError(Exception):
    """A lowering met a call that it cannot express; the graph is scheduled again without it."""

    def __init__(self, node: fx.Node) -> None:
        super().__init__(node.name)
        self.node = node
