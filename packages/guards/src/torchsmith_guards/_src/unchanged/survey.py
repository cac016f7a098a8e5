"""What stamps show: a walk over a guard set's tree and the objects that it has just held for.

An object is *known* when the words of the table show that it is the very object of the walk: the
object of an anchor (an argument, say, that the checker compares with a weak reference), one that
the checker holds, or one that a known object refers to in a way that words show:

* an item of a dict whose stamp is a word,
* an attribute of an instance: words for its class (dicts of the classes it is looked up in, order
  of the classes), for the pointer to its dict, and for the stamp of that,
* an attribute of a module, or a plain attribute of a class, likewise,
* an item of a tuple: nothing to compare, tuples do not change,
* the content of a cell of a function, an item of a list, the value of a slot, or a function's
  defaults: a word for the pointer to it, for a list its length and place, and what shows that no
  other object has taken its address: a weak reference, a dict's stamp, or (immutable) it is held,
* on 3.13 likewise an attribute of an instance that holds its values itself, since it stores to them
  without a stamp: a word for each pointer,

Facts about a known object that only its identity, an immutable value or those words decide are
*covered*. What sets, properties and other descriptors give is not known, and facts about it stay
with the generated code, as do all kinds of guards that are not named here.

A word lies in an object that the words before it show to be alive, so that no freed memory is
read although nothing is kept alive but classes: dicts get a number that no dict had before with
every change, and a known object lives as long as what refers to it is unchanged.
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn

from torchsmith_guards._src.guards import helpers
from torchsmith_guards._src.guards.guard import Guard, GuardKind
from torchsmith_guards._src.guards.tensor_spec import TensorSpec
from torchsmith_guards._src.guards.tree import Node, Tree
from torchsmith_guards._src.sources import sources as src
from torchsmith_guards._src.sources.sources import Source
from torchsmith_guards._src.unchanged import memory
from torchsmith_guards._src.unchanged.native import Library, word

# Objects of these classes are what they are for as long as they live.
_IMMUTABLE = frozenset(
    {
        *(int, float, complex, bool, str, bytes, type(None), type(Ellipsis), range, slice),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
    }
)
_DICTS = (dict, OrderedDict, defaultdict)
_TENSORS = (torch.Tensor, nn.Parameter)
_MISSING = object()
# What ``unchanged.c`` compares of a tensor; a specification that says more is not covered.
_METADATA = frozenset("type dtype device requires_grad size stride layout conj neg".split())
_COMPLETE = frozenset(f.name for f in fields(TensorSpec)) <= _METADATA


@dataclass(slots=True)
class Survey:
    """What a walk found.

    Attributes:
        table: words and tensors.
        anchors: paths whose objects the checker has to compare with ``objects`` itself.
        covered: the guards that the table and the anchors answer for.
        stamps: stamp of each dict by what the user would call it, to learn which ones change.
        keep: classes, their orders of lookup, immutable objects and weak references, whose
            addresses are compared.
    """

    table: memory.Table
    anchors: list[Source] = field(default_factory=list)
    covered: set[Guard] = field(default_factory=set)
    stamps: dict[object, int] = field(default_factory=dict)
    keep: dict[int, object] = field(default_factory=dict)


def survey(
    library: Library,
    guards: Sequence[Guard],
    params: Sequence[str],
    roots: Mapping[str, object],
    volatile: frozenset[object],
) -> tuple[Survey, list[object]]:
    """Walk over the objects of a guard set that holds.

    Args:
        library: reads the tensors.
        guards: the set.
        params: names of the roots that may be other objects at the next check.
        roots: all roots by name.
        volatile: what changes all the time: keys of ``Survey.stamps``, and anchors.

    Returns:
        What was found, and the objects at its anchors.

    Raises:
        Exception: whatever fetching an object raises.
    """
    walk = _Walk(library, frozenset(params), roots, volatile)
    walk.run(guards)
    walk.out.table.lay_out()
    return walk.out, walk.objects


class _Walk:
    def __init__(
        self,
        library: Library,
        params: frozenset[str],
        roots: Mapping[str, object],
        volatile: frozenset[object],
    ) -> None:
        self.params = params
        self.roots = roots
        self.volatile = volatile
        self.out = Survey(memory.Table(library))
        self.objects: list[object] = []
        self.known: set[Source] = set()
        self.read: set[Source] = set()  # paths of tensors of the table
        self.classes: dict[type, bool] = {}

    def run(self, guards: Sequence[Guard]) -> None:
        tree = Tree()
        for guard in guards:
            for source in guard.sources():
                if not isinstance(source, src.AnchorSource):
                    node = tree.node(source)
            if not guard.kind.relational and guard.kind is not GuardKind.GLOBAL_STATE:
                node.guards.append(guard)
        for root in tree.roots:
            obj, known = self._root(root.source)
            self._visit(root, obj, known)
        for guard in guards:
            if guard.kind in (GuardKind.SAME_OBJECT, GuardKind.NOT_SAME):
                if self.known.issuperset(guard.sources()):
                    self.out.covered.add(guard)
                elif guard.kind is GuardKind.NOT_SAME and self.read.issuperset(guard.sources()):
                    self.out.covered.add(guard)
                    self.out.table.distinct = True

    def _root(self, source: Source) -> tuple[object, bool]:
        """The object of a root, and whether it is the same one at each check."""
        obj = helpers.fetch(source, self.roots)
        match source:
            case src.NamespaceSource():
                return obj, self._held("G" if source.module is None else "M")
            case src.LocalSource():
                return obj, self._held(source.name)
            case src.FunctionSource():
                return obj, self._held("F")
            case src.PinnedSource() | src.ClassDictSource():
                return obj, True
            case _:
                return obj, False

    def _held(self, name: str) -> bool:
        return name not in self.params

    def _visit(self, node: Node, obj: object, known: bool) -> None:
        if not known and node.source not in self.volatile and _can_anchor(node, obj):
            self.out.anchors.append(node.source)
            self.objects.append(obj)
            known = True
        if known:
            self.known.add(node.source)
            for guard in node.guards:
                if self._covers(guard, obj, node.source):
                    self.out.covered.add(guard)
            if issubclass(type(obj), torch.Tensor) and self.out.table.compares(obj):
                self.read.add(node.source)
        for child in node.children.values():
            found = self._step(child.source, obj, node.source) if known else _MISSING
            if known and found is _MISSING:
                self._gradient(child, obj)
            if found is not _MISSING:
                self._visit(child, found, True)
            elif child.children:
                assert isinstance(child.source, src.Step), "children are one step further"
                self._visit(child, child.source.take(obj), False)

    # --- words -----------------------------------------------------------------------------

    def _dict(self, table: object, key: object) -> bool:
        """Compare the stamp of a known dict; False if that would not tell, or always."""
        if type(table) not in _DICTS or key in self.volatile:
            return False
        assert isinstance(table, dict), "both are"
        stamp = memory.stamp(table)
        self.out.table.add_word(id(table) + memory.STAMP, stamp)
        unstamped = memory.unstamped(table)
        if unstamped:
            self.out.table.add_word(id(table) + memory.VALUES, unstamped.start)
            now = [word(place) for place in unstamped]
            for place, expected in zip(unstamped, now, strict=True):
                self.out.table.add_word(place, expected)
            stamp = hash((stamp, *now))
        self.out.stamps[key] = stamp
        return True

    def _type(self, obj: object) -> type:
        kind = type(obj)
        self.out.table.add_word(id(obj) + memory.TYPE, id(kind))
        self.out.keep[id(kind)] = kind
        return kind

    def _class(self, kind: type) -> bool:
        """Compare all that decides what instances of a known class find in it."""
        known = self.classes.get(kind)
        if known is None:
            order = self._order(kind)
            known = self.classes[kind] = all(
                self._dict(memory.behind(src.class_dict(c)), f"{c.__qualname__} at {id(c)}")
                for c in order
                if memory.is_mutable_class(c)
            )
        return known

    def _order(self, kind: type) -> tuple[type, ...]:
        """Compare where a known class looks for attributes."""
        order = src.class_mro(kind)
        self.out.keep[id(order)] = order
        self.out.table.add_word(id(kind) + memory.MRO, id(order))
        return order

    def _instance_dict(self, obj: object, source: Source) -> dict[str, object] | None:
        """The dict of a known instance, with the words for its being the instance's."""
        kind = self._type(obj)
        if not self._class(kind) or not _plain_getattribute(kind):
            return None
        if type(_class_attribute(kind, "__dict__")) is not types.GetSetDescriptorType:
            return None
        slot = memory.dict_slot(obj)
        table = obj.__dict__
        if not slot or type(table) is not dict or word(slot) != id(table):
            return None
        self.out.table.add_word(slot, id(table))
        return table

    def _pointer(self, address: int, obj: object, at: Source) -> object:
        """``obj`` if a pointer to it that no stamp tells about can be compared."""
        self.out.table.add_word(address, id(obj))
        return self._itself(obj, at)

    def _itself(self, obj: object, at: Source) -> object:
        """``obj`` if it can be told from an object that takes its address later."""
        kind = type(obj)
        if _is_constant(obj) or isinstance(obj, type):
            self.out.keep[id(obj)] = obj
            return obj
        if kind is dict:
            self._type(obj)
            return obj if self._dict(obj, at) else _MISSING
        try:
            ref = weakref.ref(obj)
        except TypeError:
            return _MISSING
        self.out.keep[id(ref)] = ref
        self.out.table.add_word(id(ref) + memory.REFERENT, id(obj))
        return obj

    def _length(self, obj: list[object]) -> bool:
        self.out.table.add_word(id(obj) + memory.LENGTH, len(obj))
        return True

    # --- steps -----------------------------------------------------------------------------

    def _step(self, source: Source, obj: object, at: Source) -> object:
        """The object one step from a known one if words show that it stays, else ``_MISSING``."""
        match source:
            case src.AttrSource():
                return self._attribute(source, obj, at)
            case src.ItemSource():
                return self._item(source, obj, at)
            case src.ContentSource() if source.of is type(obj) and source.of in (dict, defaultdict):
                return source.take(obj) if self._dict(obj, at) else _MISSING
            case src.ResultSource() if source.fn is id:
                return id(obj)
            case src.ResultSource() if source.fn is src.class_mro:
                return self._order(obj)  # type: ignore[arg-type]
            case src.DefaultsSource() if isinstance(obj, types.FunctionType):
                table: Any = self._defaults(source, obj, isinstance(source.which, int))
                return _MISSING if table is _MISSING else table[source.which]
            case src.ClosureSource() if isinstance(obj, types.FunctionType):
                return self._content((obj.__closure__ or ())[source.index], source)
            case _:
                return _MISSING

    def _content(self, cell: types.CellType, at: Source) -> object:
        return self._pointer(id(cell) + memory.CONTENT, cell.cell_contents, at)

    def _of_function(self, source: src.AttrSource, obj: types.FunctionType) -> object:
        match source.attr:
            case "__globals__":
                return obj.__globals__  # cannot be set
            case "__defaults__" | "__kwdefaults__" as name:
                return self._defaults(source, obj, name == "__defaults__")
            case _:
                return _MISSING

    def _defaults(self, at: Source, obj: types.FunctionType, positional: bool) -> object:
        found = obj.__defaults__ if positional else obj.__kwdefaults__
        place = id(obj) + (memory.DEFAULTS if positional else memory.KWDEFAULTS)
        if found is None:
            self.out.table.add_word(place, word(place))
            return None
        return self._pointer(place, found, at)

    def _item(self, source: src.ItemSource, obj: object, at: Source) -> object:
        key = source.key
        if type(obj) is tuple and source.of in (None, tuple) and type(key) is int:
            return obj[key]
        if type(obj) is list and source.of in (None, list) and type(key) is int:
            items = word(id(obj) + memory.ITEMS)
            self._length(obj)
            self.out.table.add_word(id(obj) + memory.ITEMS, items)
            place = items + 8 * range(len(obj))[key]
            return self._pointer(place, obj[key], source)
        table = memory.behind(obj)
        if type(table) not in _DICTS or source.of not in (None, *_DICTS):
            return _MISSING
        if not (src.is_literal(key) or isinstance(key, type)) or not self._dict(table, at):
            return _MISSING
        return self._value(table, dict.__getitem__(table, key), source)

    def _value(self, table: Mapping[Any, object], value: object, at: Source) -> object:
        """A value of a compared dict if it stays the very same object."""
        return self._itself(value, at) if memory.unstamped(table) else value

    def _attribute(self, source: src.AttrSource, obj: object, at: Source) -> object:
        name, kind = source.attr, type(obj)
        if isinstance(obj, types.FunctionType):
            return self._of_function(source, obj)
        if kind is types.ModuleType:
            self._type(obj)
            space = obj.__dict__
            known = name in space and self._dict(space, at)
            return self._value(space, space[name], source) if known else _MISSING
        if kind is types.MethodType:
            return getattr(obj, name) if name in ("__self__", "__func__") else _MISSING
        if kind is types.CellType and name == "cell_contents":
            return self._content(obj, source)  # type: ignore[arg-type]
        if isinstance(obj, type):
            return self._attribute_of_class(name, obj)
        if not memory.is_mutable_class(kind):
            return _MISSING
        found = _class_attribute(kind, name)
        if type(found) is types.MemberDescriptorType:
            return self._slot(source, obj, found)
        table = self._instance_dict(obj, at)
        if table is None:
            return _MISSING
        if name == "__dict__":
            return table
        if found is not _MISSING and _may_be_data_descriptor(found):
            return _MISSING
        if not self._dict(table, at):
            return _MISSING
        if name in table:
            return self._value(table, table[name], source)
        return found if type(found) in _IMMUTABLE else _MISSING

    def _slot(
        self, source: src.AttrSource, obj: object, slot: types.MemberDescriptorType
    ) -> object:
        kind = self._type(obj)
        if not self._class(kind) or not _plain_getattribute(kind):
            return _MISSING
        place, found = id(obj) + memory.slot_offset(slot), getattr(obj, source.attr)
        return self._pointer(place, found, source) if word(place) == id(found) else _MISSING

    def _attribute_of_class(self, name: str, obj: type) -> object:
        meta = self._type(obj)
        if not self._class(meta) or not self._class(obj):
            return _MISSING
        if _class_attribute(meta, "__getattribute__") is not type.__getattribute__:
            return _MISSING
        if _class_attribute(meta, name) is not _MISSING:
            return _MISSING
        found = _class_attribute(obj, name)
        plain = type(found) is types.FunctionType or type(found) in _IMMUTABLE
        return found if plain else _MISSING

    # --- facts -----------------------------------------------------------------------------

    def _covers(self, guard: Guard, obj: object, at: Source) -> bool:
        kind = type(obj)
        match guard.kind:
            case GuardKind.ID | GuardKind.NONE:
                return True
            case GuardKind.TYPE:
                self._type(obj)
                return True
            case GuardKind.CONSTANT:
                return _is_constant(obj)
            case GuardKind.LENGTH | GuardKind.EMPTY:
                # No class word: a class with a layout like that of dict or tuple has no instances
                # that could become one of another class.
                if type(obj) is list:
                    return self._length(obj)
                return kind is tuple or self._dict(obj, at)
            case GuardKind.DICT_CONTAINS:
                return self._contains(guard, obj, at)
            case GuardKind.DICT_KEYS:
                ordered = kind is dict or (kind is OrderedDict and not obj)
                if ordered and memory.unstamped(obj):  # type: ignore[arg-type]
                    return False  # the order is not among the words
                return ordered and self._dict(obj, at)
            case GuardKind.CODE if kind is types.FunctionType:
                self.out.table.add_word(id(obj) + memory.CODE, id(guard.expected))
                return True
            case GuardKind.TENSOR:
                return self._tensor(guard, obj)
            case GuardKind.WRITABLE if kind in _TENSORS:
                self._type(obj)
                return self.out.table.add_tensor(obj)  # type: ignore[arg-type]
            case _:
                return False

    def _gradient(self, node: Node, obj: object) -> None:
        """Cover guards on the gradient of a known tensor, which is another one after each
        backward pass: what is compared is its metadata."""
        source, kind = node.source, type(obj)
        if kind not in _TENSORS or not isinstance(source, src.AttrSource) or source.attr != "grad":
            return
        assert isinstance(obj, torch.Tensor), "both classes are"
        if not obj.is_leaf or not self._class(self._type(obj)) or not _plain_getattribute(kind):
            return
        if type(_class_attribute(kind, "grad")) is not types.GetSetDescriptorType:
            return
        if self.out.table.add_tensor(obj, of_grad=True):
            self.read.add(source)
            facts = (GuardKind.TENSOR, GuardKind.WRITABLE, GuardKind.NONE)
            self.out.covered.update(g for g in node.guards if g.kind in facts and _is_full(g))

    def _contains(self, guard: Guard, obj: object, at: Source) -> bool:
        assert isinstance(guard.expected, tuple), "checked by Guard"
        return src.is_literal(guard.expected[0]) and self._dict(memory.behind(obj), at)

    def _tensor(self, guard: Guard, obj: object) -> bool:
        if type(obj) not in _TENSORS or not _is_full(guard):
            return False
        self._type(obj)
        assert isinstance(obj, torch.Tensor), "both classes are"
        return self.out.table.add_tensor(obj)


def _is_full(guard: Guard) -> bool:
    """Whether all that a guard compares of a tensor is a fact of the table."""
    spec = guard.expected
    if not isinstance(spec, TensorSpec):
        return True
    return _COMPLETE and spec.stride is not None and None not in (*spec.size, *spec.stride)


def _is_constant(obj: object) -> bool:
    return type(obj) in _IMMUTABLE or (type(obj) is tuple and all(map(_is_constant, obj)))


def _can_anchor(node: Node, obj: object) -> bool:
    """True for instances that can be compared with a weak reference, if much hangs on them."""
    kind = type(obj)
    if not memory.is_mutable_class(kind) or isinstance(obj, type | torch.Tensor):
        return False
    if not node.children or _facts(node, 3) < 3:
        return False
    try:
        weakref.ref(obj)
    except TypeError:
        return False
    return _plain_getattribute(kind)


def _facts(node: Node, enough: int) -> int:
    """How many guards a branch has, counted up to ``enough``."""
    count = len(node.guards)
    for child in node.children.values():
        if count >= enough:
            break
        count += _facts(child, enough - count)
    return count


def _class_attribute(kind: type, name: str) -> object:
    for cls in src.class_mro(kind):
        table = src.class_dict(cls)
        if name in table:
            return table[name]
    return _MISSING


def _plain_getattribute(kind: type) -> bool:
    return _class_attribute(kind, "__getattribute__") is object.__getattribute__


def _may_be_data_descriptor(found: object) -> bool:
    """True for class attributes that come before the instance's own, or could at some time."""
    kind = type(found)
    if memory.is_mutable_class(kind):
        return True
    return any(_class_attribute(kind, n) is not _MISSING for n in ("__set__", "__delete__"))
