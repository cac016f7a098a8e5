"""The memory plan: when each buffer is made, taken over and dropped.

A buffer dies with the last use of its storage. A dead buffer is taken over by the kernel that
kills it (in place, when every element is read where it is written), or waits for a later allocation
of the same size class (number of elements, dtype, device) where the peak is no higher for that;
else it is freed at once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from torchsmith_fx_backend._src import by_rows
from torchsmith_fx_backend._src.captured import GIVEN, WRITES
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.registry import Scatter, View
from torchsmith_fx_backend._src.loops.sizes import Info
from torchsmith_fx_backend._src.passes.base import IN_PLACE, saved
from torchsmith_fx_backend._src.runtime.support import conform, copy_unseen, write_part, write_slice
from torchsmith_fx_backend._src.schedule.externs import (
    OUT_VARIANTS,
    Externs,
    aliases_input,
    origins,
    plain,
)
from torchsmith_fx_backend._src.schedule.facts import COPY, GEMMS, Facts
from torchsmith_fx_backend._src.schedule.fuse import Unit
from torchsmith_fx_backend._src.schedule.order import Use
from torchsmith_fx_backend._src.schedule.plan import (
    Allocate,
    BindSymbol,
    Bump,
    ExternCall,
    Free,
    Launch,
    Layout,
    Name,
    Step,
)

aten = torch.ops.aten

# Calls whose fakes are known to be right.
TRUSTED = frozenset(
    {
        *GEMMS,
        aten.matmul.default,
        aten.embedding.default,
        aten.cat.default,
        aten.index.Tensor,
        by_rows.product,
    }
)
# Calls that copy a value with some elements replaced -> what replaces them in the value itself.
REPLACES: dict[object, object] = {
    **IN_PLACE,
    aten.slice_scatter.default: write_slice,
    aten.as_strided_scatter.default: write_part,
}
SizeClass = tuple[Index, object, object]


@dataclass(slots=True, eq=False)
class Storage:
    """Memory behind one or more names of the wrapper."""

    node: fx.Node  # the value that starts it
    owned: bool  # made inside the plan, and nothing outside can see it
    reusable: bool = False
    last: int = -1  # position of the last unit that touches it
    values: list[fx.Node] = field(default_factory=list)
    bytes: int = 0
    given: bool = False  # an input that the caller has let go of


class MemoryPlanner:
    """Turns ordered units into steps.

    Args:
        facts: the graph.
        units: in execution order.
        names: the wrapper's local for each node.
        most: buffers may wait while no more bytes than these are held at once, or than without.
        reuse: buffers may have a second owner.
    """

    def __init__(
        self,
        facts: Facts,
        units: list[Unit],
        names: dict[fx.Node, str],
        most: int = 0,
        reuse: bool = True,
    ) -> None:
        self.facts = facts
        self.units = units
        self.names = dict(names)
        self.most = most
        self.reuse = reuse
        self.externs = Externs(facts, self.names)
        self.storage: dict[fx.Node, Storage] = {}
        self.steps: list[Step | _Idle] = []
        self.peak = 0
        self._loaded = {n for u in units if u.draft is not None for n in u.draft.loads()}
        self._loaded |= {facts.number(n) for n in saved(facts.gm.graph)}  # by a backward half
        self._bound: set[str] = set()
        self._items: dict[fx.Node, str] = {}
        self._last: dict[fx.Node, int] = {}
        self._laid: dict[fx.Node, Info] = {}  # buffers that have the layout of one of their views
        self._unseen: set[fx.Node] = set()  # what only kernels touch, which take addresses
        self._layouts: dict[str, Layout] = {}  # of tensors, by name, as far as they are sure
        self._pool: dict[SizeClass, list[Storage]] = {}
        self._order = dict(enumerate(facts.nodes))
        self._results = {a for n in facts.nodes if n.op == "output" for a in n.all_input_nodes}
        for node in facts.nodes:
            if node.target is COPY:
                target = node.args[0]
                assert isinstance(target, fx.Node)
                self.names[node] = self.names[target]
        for unit in units:
            for part, place in unit.placed.items():
                self.names[part] = self.names[place.whole]

    # ---------------------------------------------------------------------------- lifetimes

    def _analyse(self) -> None:
        if self.storage:
            return
        facts = self.facts
        written = {node.args[0] for node in facts.nodes if node.target is COPY}
        for node in facts.nodes:
            if node.op in ("placeholder", "get_attr") and facts.is_tensor(node):
                self._begin(node, owned=False)
                self.storage[node].given = GIVEN in node.meta and node not in written
        for position, unit in enumerate(self.units):
            for value in self._produced(unit):
                source = self._alias_of(unit, value)
                if source is not None:
                    self.storage[value] = self.storage[source]
                    self.storage[value].values.append(value)
                else:
                    self._begin(value, owned=True)
                self._touch(value, position)
            for value in self._read(unit):
                self._touch(value, position)
        for result in self._results & self.storage.keys():
            self._touch(result, len(self.units))
            self.storage[result].owned = False

    def _begin(self, node: fx.Node, owned: bool) -> None:
        info = self.facts.try_info(node)
        storage = Storage(node, owned, values=[node])
        if info is not None:
            storage.bytes = info.bytes()
            storage.reusable = owned and info.dense() and info.offset == ix.ZERO
        self.storage[node] = storage

    def _touch(self, value: fx.Node, position: int) -> None:
        self._last[value] = max(self._last.get(value, -1), position)
        storage = self.storage[value]
        storage.last = max(storage.last, position)

    def _produced(self, unit: Unit) -> list[fx.Node]:
        if unit.draft is not None:
            stored = (self._order[number] for number in unit.draft.stores())
            return [n for n in stored if n.target is not COPY]
        node = unit.node
        assert node is not None
        if self.facts.is_tensor(node):
            return [] if node.target is COPY else [node]
        return [u for u in self.facts.taken(node) if self.facts.is_tensor(u)]

    def _alias_of(self, unit: Unit, value: fx.Node) -> fx.Node | None:
        """The value whose memory a part or an extern result shares, when it (perhaps) does."""
        node = unit.node
        if value in unit.placed:
            whole = unit.placed[value].whole
            if whole not in self.storage:
                self._begin(whole, owned=True)
            return whole
        if node is None:
            return None
        if isinstance(self.facts.rule(node), View):
            return self.facts.called_on(node)
        if aliases_input(node):
            inputs = [a for a in node.all_input_nodes if a in self.storage]
            for other in inputs if len(inputs) > 1 else ():
                self.storage[other].owned = False  # which one is not known: none may be taken over
            return inputs[0] if inputs else None
        return None

    def _read(self, unit: Unit) -> list[fx.Node]:
        if unit.draft is not None:
            loaded = [self._order[number] for number in unit.draft.loads()]
            targets = [base for n in self._produced(unit) if (base := self._written_into(n))]
            return [*loaded, *targets, *unit.mutates]
        node = unit.node
        assert node is not None
        if isinstance(self.facts.rule(node), View):
            return [self.facts.called_on(node)]
        return [a for a in node.all_input_nodes if a in self.storage]

    def _written_into(self, node: fx.Node) -> fx.Node | None:
        """The value whose memory a scatter takes over."""
        return self.facts.base(node) if isinstance(self.facts.rule(node), Scatter) else None

    def uses(self) -> list[Use]:
        """What each unit does to memory, in order; before ``run``, if that is called."""
        self._analyse()
        numbers: dict[Storage, int] = {}
        makers: dict[fx.Node, int] = {}
        found: list[Use] = []
        for position, unit in enumerate(self.units):
            makes: dict[int, int] = {}
            before, reads = set(), {}
            over: dict[int, list[int]] = {}
            produced = self._produced(unit)
            for value in produced:
                storage = self.storage[value]
                if value in unit.placed:  # one part after the other, and then who reads them
                    before.add(makers.get(storage.node, position))
                    value = storage.node
                if storage.node is value and value not in makers:
                    makes[numbers.setdefault(storage, len(numbers))] = storage.bytes
                makers[value] = position
            for value in (*produced, *self._read(unit)):
                storage = self.storage[value]
                before.add(makers.get(value, position))
                if storage.owned or storage.given:
                    reads[numbers.setdefault(storage, len(numbers))] = storage.bytes
            for value in produced if unit.draft is not None else ():
                if value in unit.placed:
                    continue
                base = self._written_into(value)
                sources = self._sources(unit, value) if base is None else [base]
                taken = [numbers[self.storage[source]] for source in sources]
                if taken:
                    over[numbers[self.storage[value]]] = taken
            found.append(Use(unit, makes, reads, over, before=before - {position}))
        return found

    # -------------------------------------------------------------------------------- steps

    def run(self) -> list[Step]:
        """The steps; afterwards ``peak`` is the most memory (bytes) that they hold at once."""
        self._analyse()
        self._choose_layouts()
        self._bind_inputs()
        for position, unit in enumerate(self.units):
            if unit.draft is not None:
                self._launch(position, unit)
            else:
                self._extern(position, unit)
            self._bury(position)
        return self._without_idle(self.steps)

    def _class(self, info: Info) -> SizeClass:
        return (info.reach, info.dtype, info.device)

    def _take(self, value: fx.Node, info: Info) -> Storage | None:
        """A dead buffer of the right class that waits in the pool; rather one laid out alike."""
        waiting = self._pool.get(self._class(info)) if self.reuse else None
        if not waiting or value in self._unseen:
            return waiting.pop() if waiting else None
        layout = _layout(self._laid.get(value, info))
        places = range(len(waiting) - 1, -1, -1)
        alike = (i for i in places if self._layouts.get(self.names[waiting[i].node]) == layout)
        return waiting.pop(next(alike, -1))

    def _choose_layouts(self) -> None:
        """Lay a kernel's buffer out as the calls that read it view it: kernels take addresses."""
        facts = self.facts
        views: dict[fx.Node, list[fx.Node]] = {}
        results, named = set(self._results), set(self._results)
        for unit in self.units:
            if unit.node is not None and isinstance(facts.rule(unit.node), View):
                base, detached = facts.called_on(unit.node), unit.node.target is aten.detach.default
                views.setdefault(base, []).append(unit.node)
                if detached and facts.try_info(unit.node) == facts.try_info(base):
                    named.add(base)  # the result is detached of it as it lies
            elif unit.node is not None:
                named.update(unit.node.all_input_nodes)
        for unit in self.units:
            for value in self._produced(unit) if unit.draft is not None else ():
                info = facts.info(value)
                if value in named or not info.dense() or value in unit.placed:
                    continue
                if self._written_into(value) is not None:
                    continue
                whole = [v for v in views.get(value, ()) if _covers(facts.try_info(v), info)]
                if value not in views:
                    self._unseen.add(value)
                if not whole:
                    continue
                chosen = facts.info(max(whole, key=lambda view: len(view.users)))
                self._laid[value] = chosen
                self.externs.relaid.add(value)
                for view in whole:
                    other = facts.info(view)
                    alike = (other.shape, other.stride) == (chosen.shape, chosen.stride)
                    if alike and not {value, view} <= results:  # two results are two tensors
                        self.names[view] = self.names[value]
                        if view in results:
                            results.add(value)

    def _allocate(self, value: fx.Node, info: Info, reuse: Storage | None) -> None:
        name, layout = self.names[value], _layout(self._laid.get(value, info))
        if reuse is None:
            self.steps.append(Allocate(name, layout))
        else:
            dead = self.names[reuse.node]
            held = self._layouts.get(dead)
            if held is not None and value in self._unseen:
                layout = held
            self.steps.append(Allocate(name, layout, dead, held == layout))
            self.steps.append(Free(dead))
        self._layouts[name] = layout

    def _launch(self, position: int, unit: Unit) -> None:
        draft = unit.draft
        assert draft is not None
        same: dict[int, int] = {}
        for target, copy in unit.mutates.items():
            if self.facts.number(target) in draft.loads():
                same[self.facts.number(copy)] = self.facts.number(target)
        claimed: set[Storage] = set()
        for number in draft.stores():
            value = self._order[number]
            if value.target is COPY:
                continue
            if value in unit.placed:
                whole = unit.placed[value].whole
                if self.names[whole] not in self._layouts:
                    layout = self.facts.info(whole)
                    self._allocate(whole, layout, self._take(whole, layout))
                continue
            info = self.facts.info(value)
            base = self._written_into(value)
            source = base or self._dying_input(position, unit, value, claimed)
            if source is None:
                self._allocate(value, info, self._take(value, info))
                continue
            claimed.add(self.storage[source])
            self._allocate(value, info, self.storage[source])
            if base is None:
                same[number] = self.facts.number(source)
        assert unit.nest is not None
        device = unit.nest.device
        held = {n for n in draft.loads() if self.facts.info(self._order[n]).device != device}
        kernel, order, items = draft.bind(same, held)
        numbers = {name: self._number(self._order[n]) for name, n in items.items()}
        written = {source: number for number, source in same.items()}
        values = [self._order[written.get(n, n)] for n in order]
        assert all(self.facts.info(v).device == device for v in values), "another device's memory"
        args = tuple(self.names[value] for value in values)
        wholes = {part: place.whole for part, place in unit.placed.items()}
        sizes = tuple(self.facts.info(wholes.get(value, value)).reach for value in values)
        nodes = {self.facts.is_output_of(n) or n for n in unit.nest.members} | {*wholes.values()}
        told = self._origins(unit), sizes, tuple(sorted(n.name for n in nodes))
        symbols = tuple(numbers.get(s, s) for s in kernel.symbols) if numbers else ()
        self.steps.append(Launch(kernel, args, device, *told, numbers=symbols))
        for target, copy in unit.mutates.items():
            self.steps.append(Bump(self.names[target], copy.meta.get(WRITES, 1)))
        for storage in claimed:
            storage.owned = False  # its memory lives on under another name

    def _number(self, value: fx.Node) -> str:
        """The local that has what a tensor of one element holds."""
        found = self._items.get(value)
        if found is None:
            found = self.names[value]
            while found in self._bound or found in self.names.values():
                found += "_item"
            self._bound.add(found)
            self._items[value] = found
            self.steps.append(BindSymbol(found, self.names[value], "item"))
        return found

    def _dying_input(
        self, position: int, unit: Unit, value: fx.Node, claimed: set[Storage]
    ) -> fx.Node | None:
        found = self._sources(unit, value, position)
        return next((source for source in found if self.storage[source] not in claimed), None)

    def _sources(self, unit: Unit, value: fx.Node, last: int | None = None) -> Iterator[fx.Node]:
        """What a kernel reads and ``value`` may be written over: all that could, or what position
        ``last`` is the last to read."""
        draft, wanted = unit.draft, self._class(self.facts.info(value))
        assert draft is not None
        for number in draft.loads() if self.reuse else ():
            source = self._order[number]
            storage = self.storage[source]
            if last is not None and storage.last != last:
                continue
            if not storage.owned or not storage.reusable or storage.node is not source:
                continue
            if self._class(self.facts.info(source)) != wanted:
                continue
            if draft.may_share(number, self.facts.number(value)):
                yield source

    def _extern(self, position: int, unit: Unit) -> None:
        node = unit.node
        assert node is not None
        info, facts_rule = self.facts.try_info(node), self.facts.rule(node)
        out = None
        if node.target in OUT_VARIANTS and info is not None:
            reuse = self._take(node, info)
            if reuse is not None:
                self._allocate(node, info, reuse)
                out = self.names[node]
        is_view = isinstance(facts_rule, View)
        if is_view and self.names[node] == self.names[self.facts.called_on(node)]:
            self._bind(node)
            return  # its base has this layout
        over = self._replaced(position, node)
        calls = self.externs.calls(node, out)
        if over is not None:
            name, dead = self.names[node], self.names[over.node]
            self.steps += [Allocate(name, _layout(self.facts.info(node)), dead, True), Free(dead)]
            args = Name(name), *calls[0].args[1:]
            calls = [replace(calls[0], target=REPLACES[node.target], args=args, results=())]
            over.owned = False  # its memory lives on under another name
        writes = node.meta.get(WRITES, 1) if node.target is COPY else 1
        if writes == 0:
            calls = [replace(call, target=copy_unseen) for call in calls]
        self.steps.extend(calls)
        if out is None and node.target in TRUSTED and info is not None:
            self._layouts[self.names[node]] = _layout(info)
        for target in self.facts.written(node):
            if target.op in ("placeholder", "get_attr"):
                self.steps.append(Bump(self.names[target], max(writes - 1, 0)))
        checked = out is None and node.target not in TRUSTED and not is_view
        for value in self._produced(unit):
            self._bind(value)
            if checked:
                self._conform(value)

    def _replaced(self, position: int, node: fx.Node) -> Storage | None:
        """The memory of the value that a call copies to replace some of its elements, where nothing
        else reads it: eager would have written there, too."""
        base = node.args[0] if self.reuse and node.target in REPLACES else None
        storage = self.storage.get(base) if isinstance(base, fx.Node) else None
        if storage is None or storage.node is not base or storage.last != position:
            return None
        others: list[Storage | None] = []
        fx.map_arg((node.args[1:], node.kwargs), lambda n: others.append(self.storage.get(n)))
        if not storage.owned or not storage.reusable or storage in others:
            return None
        return storage if self.facts.info(storage.node) == self.facts.try_info(node) else None

    def _conform(self, value: fx.Node) -> None:
        """Have a result that a kernel reads, of this graph or of its backward half, checked at run
        time."""
        info = self.facts.try_info(value)
        if info is None or self.facts.number(value) not in self._loaded:
            return
        if ix.ZERO in info.shape:
            return  # no kernel reads it: the fake of a workspace, whose size the library chooses
        name = self.names[value]
        size, stride = (tuple(map(plain, part)) for part in (info.shape, info.stride))
        own = self.storage[value].node is value
        expected = Name(name), size, stride, info.dtype, own
        self.steps.append(ExternCall(conform, expected, (), (name,)))

    def _origins(self, unit: Unit) -> tuple[str, ...]:
        assert unit.nest is not None
        names: dict[str, None] = {}
        nodes = [self.facts.is_output_of(n) or n for n in unit.nest.members]
        for node in nodes:
            names[origins(node)[0]] = None
        lines = [line for node in nodes for line in origins(node)[1:]]
        return (*names, *lines[:1])

    def _bury(self, position: int) -> None:
        """Drop names whose last use this was; keep storages that a later step takes over."""
        unit = self.units[position]
        for value in dict.fromkeys([*self._read(unit), *self._produced(unit)]):
            storage = self.storage[value]
            apart = self.names[value] != self.names[storage.node]
            if self._last[value] == position and apart:
                self.steps.append(Free(self.names[value]))
            if storage.last == position and storage.given:
                storage.given = False
                self.steps.append(Free(self.names[storage.node]))
            if storage.last == position and storage.owned:
                storage.owned = False
                info = self.facts.try_info(storage.node)
                if storage.reusable and info is not None:
                    self._pool.setdefault(self._class(info), []).append(storage)
                self.steps.append(_Idle(storage))

    def _without_idle(self, steps: Sequence[Step | _Idle]) -> list[Step]:
        """Settle, for each dead buffer, whether it waits for its next owner or is freed."""
        made = (s for s in self.storage.values() if s.node.op == "call_function")
        sizes = {self.names[s.node]: s.bytes for s in made}
        given = {self.names[n]: self.storage[n].bytes for n in self.storage if n.meta.get(GIVEN)}
        idle = {self.names[s.storage.node]: i for i, s in enumerate(steps) if isinstance(s, _Idle)}
        now = sum(given.values())
        held = []  # after each step, if no dead buffer waits
        waits = []
        for position, step in enumerate(steps):
            match step:
                case _Idle(storage):
                    now -= storage.bytes
                case Allocate(name, _, reuse) if reuse is None or reuse in idle:
                    now += sizes[name]
                    waits += [(idle[reuse], position, reuse)] if reuse is not None else []
                case ExternCall(target=target, results=results, out=None) if target is not conform:
                    now += sum(sizes.get(result, 0) for result in results if result is not None)
                case Free(name):
                    now -= given.get(name, 0)
                case _:
                    pass
            held.append(now)
        self.peak = max(held, default=now)
        most = max(self.peak, self.most)
        kept = set()
        for start, end, name in sorted(waits):
            if max(held[start:end]) + sizes[name] <= most:
                held[start:end] = [amount + sizes[name] for amount in held[start:end]]
                kept.add(name)
        self.peak = max(held, default=now)
        out: list[Step] = []
        for step in steps:
            match step:
                case _Idle(storage):
                    name = self.names[storage.node]
                    if name not in kept:
                        out.append(Free(name))
                case Allocate(reuse=reuse) if reuse in idle and reuse not in kept:
                    out.append(replace(step, reuse=None, as_is=False))
                case Free(name) if name in idle and name not in kept:
                    pass  # it was freed when it died
                case _:
                    out.append(step)
        return out

    # ------------------------------------------------------------------------------ symbols

    def _bind_inputs(self) -> None:
        for node in self.facts.nodes:
            if node.op == "placeholder" and not self.facts.is_tensor(node):
                index = self.facts.scalar_index(node)
                if type(index) is ix.Sym:
                    self._bound.add(index.name)
        for node in self.facts.nodes:
            if node.op == "placeholder" and self.facts.is_tensor(node):
                self._bind(node)

    def _bind(self, value: fx.Node) -> None:
        """Give size symbols that first appear in the layout of ``value`` their number."""
        info = self.facts.try_info(value)
        if info is None:
            return
        name = self.names[value]
        for what, sizes in (("size", info.shape), ("stride", info.stride)):
            for axis, size in enumerate(sizes):
                if type(size) is ix.Sym and size.name not in self._bound:
                    self._bound.add(size.name)
                    self.steps.append(BindSymbol(size.name, name, what, axis))  # type: ignore[arg-type]
        for axis, size in enumerate(info.shape):
            self._solve(size, name, axis)

    def _solve(self, size: Index, name: str, axis: int) -> None:
        """Bind the one unknown symbol of ``c * s + d`` from the size of an input."""
        free = ix.symbols(size) - self._bound
        if len(free) != 1 or type(size) is ix.Sym:
            return
        symbol = free.pop()
        terms = size.terms if type(size) is ix.Add else (size,)
        scale = rest = None
        for term in terms:
            if symbol in ix.symbols(term):
                if scale is not None:
                    return
                factors = term.factors if type(term) is ix.Mul else (term,)
                others = [f for f in factors if type(f) is not ix.Sym or f.name != symbol]
                if len(others) == len(factors):
                    return
                scale = ix.product(others)
            else:
                rest = term if rest is None else ix.add(rest, term)
        if scale is None or symbol in ix.symbols(scale):
            return
        whole = f"{symbol}_times"
        self.steps.append(BindSymbol(whole, name, "size", axis))
        value: Index = ix.Sym(whole)
        if rest is not None:
            value = ix.sub(value, rest)
        self.steps.append(ExternCall(operator.floordiv, (value, plain(scale)), (), (symbol,)))
        self._bound.add(symbol)


def _layout(info: Info) -> Layout:
    return Layout(info.dtype, info.device, info.shape, info.stride)


def _covers(view: Info | None, base: Info) -> bool:
    """Whether a view consists of all elements of the dense ``base``, in some order."""
    return (
        view is not None
        and view.dense()
        and view.offset == ix.ZERO
        and view.dtype is base.dtype
        and view.numel == base.numel
    )


@dataclass(frozen=True, slots=True)
class _Idle:
    """Marks where a storage dies, while steps are made."""

    storage: Storage


def eager_peak(facts: Facts) -> int:
    """Bytes that eager execution holds at once beyond inputs that its caller holds, freeing at
    last use."""
    root: dict[fx.Node, fx.Node] = {}
    last: dict[fx.Node, int] = {}
    for position, node in enumerate(facts.nodes):
        if node.op in ("placeholder", "get_attr"):
            root[node] = node
            last[node] = -1 if GIVEN in node.meta else len(facts.nodes)
            continue
        for arg in node.all_input_nodes:
            if arg in root:
                end = len(facts.nodes) if node.op == "output" else position
                last[root[arg]] = max(last.get(root[arg], -1), end)
        if isinstance(facts.rule(node), View) or facts.is_split(node):
            source = facts.base(node) if isinstance(facts.rule(node), View) else node.args[0]
            root[node] = root.get(source, node)  # type: ignore[arg-type]
        elif node.target is operator.getitem or node.target is COPY:
            root[node] = root.get(node.args[0], node)  # type: ignore[arg-type]
        else:
            root[node] = node
        last[root[node]] = max(last.get(root[node], -1), position)
    ends: dict[int, list[int]] = {}
    now = peak = 0
    for position, node in enumerate(facts.nodes):
        made = node.op == "call_function" or node.meta.get(GIVEN)
        if made and root.get(node) is node:
            size = _bytes(facts, node)
            now += size
            ends.setdefault(last[node], []).append(size)
        peak = max(peak, now)
        now -= sum(ends.pop(position, ()))
    return peak


def _bytes(facts: Facts, node: fx.Node) -> int:
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return sum(_bytes(facts, u) for u in node.users if facts.is_tensor(u))
    info = facts.try_info(node)
    return 0 if info is None else info.bytes()
