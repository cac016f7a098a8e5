"""What generated checkers compare: one guard as the condition under which it fails."""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections.abc import Iterable, Mapping

import torch

from torchsmith_guards._src.fake.layouts.base import contiguous_strides
from torchsmith_guards._src.guards import helpers
from torchsmith_guards._src.guards.guard import Guard, GuardKind
from torchsmith_guards._src.guards.referent import Referent
from torchsmith_guards._src.guards.tensor_spec import TensorSpec
from torchsmith_guards._src.shapes.nodes import FUNCTIONS
from torchsmith_guards._src.sources.sources import is_literal, is_short, own_name


class Names:
    """Names of a generated text, and the objects behind those that are constants.

    Attributes:
        taken: names that mean something already.
        namespace: the constants by name.
    """

    def __init__(self, known: Mapping[str, object]) -> None:
        self.taken: set[str] = {*keyword.kwlist, *dir(builtins), *FUNCTIONS, *known}
        self.namespace: dict[str, object] = {}
        self._by_id = {id(value): name for name, value in known.items()}
        self._counts: dict[str, int] = {}
        self._sizes: dict[tuple[int | None, ...], torch.Size] = {}

    def unique(self, wish: str) -> str:
        """``wish``, or that with a number when it is taken."""
        name, n = wish, self._counts.get(wish, 1)
        while name in self.taken:
            n += 1
            name = f"{wish}_{n}"
        self._counts[wish] = n
        self.taken.add(name)
        return name

    def constant(self, value: object, wish: str = "") -> str:
        """A name for ``value`` in the globals of the text."""
        known = self._by_id.get(id(value))
        if known is not None:
            return known
        given = wish or own_name(value) or f"a_{type(value).__name__}"
        text = re.sub(r"\W", "_", given).lstrip("_")
        name = self.unique(text if text.isidentifier() else f"a_{type(value).__name__}")
        self._by_id[id(value)] = name
        self.namespace[name] = value
        return name

    def literal(self, value: object) -> str:
        """``value`` as text, or as a constant when it does not print as a literal."""
        return repr(value) if is_literal(value) and is_short(value) else self.constant(value)

    def size(self, sizes: tuple[int | None, ...]) -> str:
        """Static sizes as a constant of the type that ``shape`` has, which compares fastest."""
        size = self._sizes.setdefault(sizes, torch.Size(n for n in sizes if n is not None))
        return self.constant(size, "_".join(["size", *map(str, sizes)]))


_FEW = 10  # so many keys are looked up faster one by one than by a view of the keys
# Kinds whose condition names the object once, so that it needs no variable.
_SINGLE = (GuardKind.ID, GuardKind.NONE, GuardKind.EMPTY, GuardKind.CODE, GuardKind.WRITABLE)


def reads_once(guards: Iterable[Guard]) -> bool:
    """True when the conditions of all ``guards`` together name the object once."""
    (first, *others) = guards
    if others or isinstance(first.expected, Referent):
        return False
    return first.kind in _SINGLE or (
        first.kind is GuardKind.CONSTANT and isinstance(first.expected, bool)
    )


def condition(names: Names, var: str, guard: Guard) -> str:
    """The condition on ``var`` under which a guard on one object (no tensor) fails."""
    expected = guard.expected
    match guard.kind:
        case GuardKind.TYPE:
            return f"type({var}) is not {names.constant(expected)}"
        case GuardKind.ID:
            if expected is None or isinstance(expected, bool):
                return f"{var} is not {expected}"
            if isinstance(expected, Referent):  # a dead one gives None
                referent = names.constant(expected, "the_" + expected.text)
                return f"{var} is not {referent}() or {var} is None"
            return f"{var} is not {names.constant(expected)}"
        case GuardKind.CONSTANT:
            return _constant(names, var, expected)
        case GuardKind.LENGTH:
            kind, length = pair(expected)
            return f"type({var}) is not {names.constant(kind)} or len({var}) != {length}"
        case GuardKind.DICT_KEYS:
            return _keys(names, var, *pair(expected))
        case GuardKind.DICT_CONTAINS:
            key, present = pair(expected)
            return f"{names.literal(key)} {'not in' if present else 'in'} {var}"
        case GuardKind.HASATTR:
            name, present = pair(expected)
            return f"{'not ' if present else ''}hasattr({var}, {name!r})"
        case GuardKind.NONE:
            return f"{var} is not None"
        case GuardKind.CODE:
            return f"{var}.__code__ is not {names.constant(expected, 'code')}"
        case GuardKind.EMPTY:
            return var
        case GuardKind.WRITABLE:
            return f"{var}.is_inference()"
        case _:
            raise TypeError(f"{guard.kind} has no condition on one source")


def is_absence(guard: Guard) -> bool:
    """True for a guard that a dict lacks a key."""
    return guard.kind is GuardKind.DICT_CONTAINS and pair(guard.expected)[1] is False


def absent(names: Names, var: str, guards: Iterable[Guard]) -> str:
    """The condition under which one of several absences fails, asked for together."""
    keys = tuple(pair(g.expected)[0] for g in guards)
    if len(keys) <= _FEW:
        return " or ".join(f"{names.literal(key)} in {var}" for key in keys)
    return f"not {var}.keys().isdisjoint({names.literal(keys)})"


def _constant(names: Names, var: str, value: object) -> str:
    if value is None or value is Ellipsis or isinstance(value, bool):
        return f"{var} is not {value!r}"
    if type(value) in (int, str, bytes):
        return f"type({var}) is not {type(value).__name__} or {var} != {names.literal(value)}"
    if type(value) is float and value != 0.0 and math.isfinite(value):
        return f"type({var}) is not float or {var} != {value!r}"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return f"{var} is not {names.constant(value, str(value).removeprefix('torch.'))}"
    return f"not {names.constant(helpers.same_constant)}({var}, {names.literal(value)})"


def _keys(names: Names, var: str, kind: object, keys: object) -> str:
    assert isinstance(keys, tuple), "checked by Guard"
    head = f"type({var}) is not {names.constant(kind)}"
    if not keys:
        return f"{head} or len({var}) != 0"
    if all(type(k) is str for k in keys):
        return f"{head} or tuple({var}) != {keys!r}"
    same_keys = names.constant(helpers.same_keys)
    return f"{head} or not {same_keys}({var}, {names.literal(keys)})"


def tensor(names: Names, var: str, spec: TensorSpec) -> str:
    """The condition on the metadata of a tensor: all but symbolic sizes and strides, and a
    negative bit that must not be set."""
    tests = [
        f"type({var}) is not {names.constant(spec.type)}",
        f"{var}.dtype is not {names.constant(spec.dtype, str(spec.dtype)[6:])}",
    ]
    if spec.device.type == "cpu":
        tests.append(f"not {var}.is_cpu")
    else:
        tests.append(f"{var}.device != {names.constant(spec.device, spec.device.type)}")
    tests.append(f"{'not ' if spec.requires_grad else ''}{var}.requires_grad")
    if is_static(spec):
        tests.append(f"{var}.shape != {names.size(spec.size)}")
    strides = spec.stride
    # Sparse tensors report strides of 0 and opaque CPU ones report any: where the strides do
    # not tell the layouts apart, the layout has to be read.
    if spec.device.type == "cpu" or not strides or set(strides) <= {0, None}:
        tests.append(f"{var}.layout is not {names.constant(spec.layout, str(spec.layout)[6:])}")
    if is_static(spec) and strides and None not in strides:
        tests.append(_strides(var, spec))
    if spec.dtype.is_complex:
        tests.append(f"{'not ' if spec.conj else ''}{var}.is_conj()")
    if spec.neg:
        tests.append(f"not {var}.is_neg()")
    return " or ".join(tests)


def is_static(spec: TensorSpec) -> bool:
    """True when no size is symbolic."""
    return None not in spec.size


def _strides(var: str, spec: TensorSpec) -> str:
    assert spec.stride is not None
    # For sizes above 1 "contiguous" and "has these strides" are the same, and cheaper to ask.
    if all(s is not None and s > 1 for s in spec.size) and spec.stride == contiguous_strides(
        spec.size
    ):
        return f"not {var}.is_contiguous()"
    return f"{var}.stride() != {spec.stride!r}"


def pair(value: object) -> tuple[object, object]:
    """``expected`` of the kinds that compare two things."""
    assert isinstance(value, tuple), "checked by Guard"
    return value[0], value[1]
