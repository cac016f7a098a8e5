"""Proof, on the interpreter and torch at hand, of everything that the native check relies on.

Each claim is tried out: a change that must be seen is made, and the words or the metadata must
differ after it. A claim that fails turns the native check off for the process.
"""

from __future__ import annotations

import platform
import struct
import sys
import sysconfig
import types
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchsmith_guards._src.unchanged.native import Library, word


class SelfTestError(Exception):
    """The interpreter or torch does not do what the native check relies on."""


def supported() -> None:
    """Raises ``SelfTestError`` for interpreters that do not stamp dicts."""
    version = sys.version_info[:2]
    if platform.python_implementation() != "CPython" or not (3, 11) <= version <= (3, 13):
        raise SelfTestError(f"Python {version[0]}.{version[1]} does not stamp its dicts")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SelfTestError("threads store while others compare")
    if struct.calcsize("P") != 8 or sys.byteorder != "little":
        raise SelfTestError("not a little-endian machine of 64 bits")


def run(library: Library) -> None:
    """Raises ``SelfTestError`` when something does not hold."""
    for test in (_stamps, _instances, _classes, _references, _tensors, _gradients, _batches):
        for n, holds in enumerate(test(library)):
            if not holds:
                raise SelfTestError(f"claim {n} of {test.__name__}")


def _stamps(library: Library) -> Iterator[bool]:
    from torchsmith_guards._src.unchanged.memory import stamp

    changes: tuple[Callable[[Any], object], ...] = (  # each leaves another content than it finds
        lambda d: d.__setitem__("a", 1),
        lambda d: d.__setitem__("a", 2),
        lambda d: d.__setitem__("a", 1),
        lambda d: d.update(a=3, b=4),
        lambda d: d.setdefault("c", 5),
        lambda d: d.__delitem__("b"),
        lambda d: d.pop("c"),
        lambda d: d.__ior__({"d": 6}),
        lambda d: d.popitem(),
        lambda d: d.update({i: i for i in range(100)}),
        lambda d: d.clear(),
    )
    tables: tuple[dict[object, object], ...] = ({}, {"a": 0}, OrderedDict(a=0))
    for table in tables:
        seen = {stamp(table)}
        for count, change in enumerate(changes, start=2):
            change(table)
            seen.add(stamp(table))
            yield len(seen) == count
    # Compiled code stores by instructions of its own, which become specialised in loops.
    space: dict[str, Any] = {}
    plain: dict[str, object] = {}
    exec("def store(n):\n global x\n x = n\ndef put(d, n):\n d['x'] = n", space)
    for n in range(300):
        before = stamp(space), stamp(plain)
        space["store"](1000 + n)
        space["put"](plain, 1000 + n)
        yield stamp(space) != before[0] and stamp(plain) != before[1]


class _Plain:
    x: object

    def set_x(self, value: object) -> None:
        self.x = value


class _Slots:
    __slots__ = ("x", "y")


class _Large:
    """More attributes than fit into an instance."""

    x: object

    def __init__(self) -> None:
        for n in range(60):
            setattr(self, f"a{n}", n)


def _content(table: dict[str, object]) -> list[int]:
    """All that is compared of an instance dict."""
    from torchsmith_guards._src.unchanged import memory

    return [
        memory.stamp(table),
        word(id(table) + memory.VALUES),
        *map(word, memory.unstamped(table)),
    ]


def _instances(library: Library) -> Iterator[bool]:
    from torchsmith_guards._src.unchanged.memory import TYPE, dict_slot, unstamped

    objects: tuple[Any, ...] = (_Plain(), torch.nn.Module(), _Large(), _Plain())
    objects[-1].__dict__ = {"x": 1}  # not the instance's own
    for obj in objects:
        _Plain.set_x(obj, 0)
        for n in range(300):
            slot, table = dict_slot(obj), obj.__dict__
            before = _content(table)
            yield word(slot) == id(table)
            _Plain.set_x(obj, value := float(n))
            yield word(slot) != id(table) or _content(table) != before
            here = unstamped(table)
            yield not here or id(value) in map(word, here)
        for name in ("x", "other"):
            before = _content(table)
            if name in table:
                delattr(obj, name)
                yield _content(table) != before
                before = _content(table)
            setattr(obj, name, before)
            yield _content(table) != before
            delattr(obj, name)
            before = _content(table)
            table[name] = before
            yield _content(table) != before
        slot, table = dict_slot(obj), obj.__dict__
        obj.__dict__ = dict(table)
        yield word(slot) == id(obj.__dict__) != id(table)
        obj.__class__ = type("Other", (type(obj),), {})
        yield word(id(obj) + TYPE) == id(type(obj))


def _classes(library: Library) -> Iterator[bool]:
    from torchsmith_guards._src.unchanged import memory

    first, second = type("First", (), {}), type("Second", (), {})
    derived = type("Derived", (first,), {"x": 1})
    table = memory.behind(vars(derived))
    for name, value in (("x", 2), ("y", property(len)), ("__getattribute__", len)):
        before = memory.stamp(table)
        setattr(derived, name, value)
        yield table[name] is value and memory.stamp(table) != before
    delattr(derived, "__getattribute__")
    before = word(id(derived) + memory.MRO)
    derived.__bases__ = (second,)
    yield word(id(derived) + memory.MRO) == id(derived.__mro__) != before
    yield memory.is_mutable_class(derived) and not memory.is_mutable_class(dict)


def _references(library: Library) -> Iterator[bool]:
    from torchsmith_guards._src.unchanged import memory

    def one() -> None: ...
    def two() -> int: ...  # type: ignore[empty-body]

    one.__code__ = two.__code__
    yield word(id(one) + memory.CODE) == id(two.__code__)
    one.__defaults__, one.__kwdefaults__ = (1.5,), {"a": 2.5}
    yield word(id(one) + memory.DEFAULTS) == id(one.__defaults__)
    yield word(id(one) + memory.KWDEFAULTS) == id(one.__kwdefaults__)
    one.__defaults__ = one.__kwdefaults__ = None
    yield not word(id(one) + memory.DEFAULTS) and not word(id(one) + memory.KWDEFAULTS)
    slots = _Slots()
    for n in range(100):
        slots.x, slots.y = float(n), str(n)  # type: ignore[attr-defined]
        for name in ("x", "y"):
            place = id(slots) + memory.slot_offset(_Slots.__dict__[name])
            yield word(place) == id(getattr(slots, name))
    first, second = _Plain(), _Plain()
    cell = types.CellType(first)
    cell.cell_contents = second
    yield word(id(cell) + memory.CONTENT) == id(second)
    items: list[object] = []
    for count in range(1, 100):
        items.append(_Plain())
        place = word(id(items) + memory.ITEMS)
        yield word(id(items) + memory.LENGTH) == count
        yield all(word(place + 8 * n) == id(x) for n, x in enumerate(items))
    ref, address = weakref.ref(second), id(second)
    yield word(id(ref) + memory.REFERENT) == address
    del second, cell
    yield ref() is None and word(id(ref) + memory.REFERENT) != address


def _tensors(library: Library) -> Iterator[bool]:
    """Metadata that differs in one thing is told apart, and that of one tensor is not."""
    from torchsmith_guards._src.unchanged.memory import Table

    base = torch.zeros(4, 6, device="cpu", dtype=torch.float32)
    complex_ = base.to(torch.complex64)
    with torch.inference_mode():
        inference = torch.nn.Parameter(base.clone())
    yield library.describe(base.to_sparse()) is None
    # The same tensor object all along, so that only what it stands for differs.
    target = torch.nn.Parameter(base.clone())
    swap: Any = torch.utils.swap_tensors
    changes: tuple[Callable[[Any], object], ...] = (
        lambda p: p.requires_grad_(False),
        lambda p: setattr(p, "data", p.data.double()),
        lambda p: setattr(p, "data", p.data.t()),
        lambda p: setattr(p, "data", p.data[:, :3]),
        lambda p: setattr(p, "data", p.data[:, ::2]),
        lambda p: setattr(p, "data", p.data.clone()),
        lambda p: p.resize_(3, 3),
        lambda p: p.as_strided_((3, 3), (1, 3)),
        lambda p: p.t_(),
        lambda p: setattr(p, "data", torch._neg_view(p.data)),
        lambda p: setattr(p, "data", torch.zeros(1, 1, 1, 2, 2, 2, 3)),
        lambda p: setattr(p, "data", torch.zeros(1, 1, 1, 2, 2, 3, 2)),
        lambda p: setattr(p, "data", torch.zeros(())),
        lambda p: setattr(p, "data", torch.zeros(1)),
        lambda p: swap(p, torch.nn.Parameter(complex_)),
        lambda p: setattr(p, "data", p.data.conj()),
        lambda p: swap(p, torch.nn.Parameter(base.clone())),
        lambda p: swap(p, inference),
        lambda p: swap(p, torch.nn.Parameter(base.clone())),
        lambda p: swap(p, torch.nn.Parameter(base.to("meta"))),
    )
    for change in changes:
        table = Table(library)
        yield table.add_tensor(target)
        table.lay_out()
        yield table.holds()
        change(target)
        yield not table.holds()


class _Derived(torch.Tensor): ...


def _gradients(library: Library) -> Iterator[bool]:
    """Gradients of other metadata, of another class, and none, are told apart."""
    from torchsmith_guards._src.unchanged.memory import Table

    def table(*given: tuple[torch.Tensor, bool]) -> Table:
        made = Table(library)
        made.distinct = all(made.add_tensor(*each) for each in given)
        made.lay_out()
        return made

    target, other = (torch.nn.Parameter(torch.zeros(4, 4, device="cpu")) for _ in range(2))
    torch.autograd.backward((target * other.detach()).sum())  # which no Python object stands for
    first = table((target, True), (other, True))
    yield first.distinct and first.holds()
    plain = target.grad
    assert plain is not None, "it was computed"
    yield first.holds()
    derived, marked = plain.as_subclass(_Derived), plain.clone().requires_grad_()
    for grad in (None, plain.t(), marked, torch._neg_view(plain)):
        target.grad = grad
        other_then = table((target, True))
        yield not first.holds() and other_then.holds()
        target.grad = plain.clone()
        yield first.holds() and not other_then.holds()
    target.grad = derived
    yield not first.holds() and not table((target, True)).distinct
    for grad in (plain, plain.clone()):
        target.grad, other.grad = plain, grad
        pair = table((target, True), (other, True), (plain, False))
        yield not pair.holds() and not pair.holds()


def _batches(library: Library) -> Iterator[bool]:
    """What is read of many tensors is what each says, and writes are counted."""
    base = torch.zeros(6, 6, device="cpu")
    with torch.inference_mode():
        inference = base.clone()
    leaf = torch.nn.Parameter(base + 1)
    tensors = (base, leaf, base[1:, 2:], torch.empty(0, device="cpu"), leaf * 2)
    before = [t._version for t in tensors]
    words = array("Q", [*(t.data_ptr() for t in (*tensors, inference)), *before, 0])
    flags = (t.requires_grad + 2 * t._is_view() + 4 * t.is_leaf for t in tensors)
    yield library.look(*tensors, inference) == bytes((*words.tobytes(), *flags, 4 + 8))
    yield not any(library.look(base, odd) for odd in (base.as_subclass(_Derived), base.to_sparse()))
    zero = torch._efficientzerotensor(2, device="cpu")
    lazy = (torch._neg_view(base), base.to(torch.cfloat).conj(), zero, base.to_sparse(), None)
    yield library.in_memory(*tensors) and not any(map(library.in_memory, lazy))
    yield library.bump(*tensors, base) and not library.bump(base, inference)
    yield [t._version - n for t, n in zip(tensors, before)] == [3, 1, 3, 1, 1]
