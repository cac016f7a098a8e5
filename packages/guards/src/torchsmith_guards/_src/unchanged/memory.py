"""Where CPython keeps what the native check compares, and the table of it. All addresses are of
live objects, whoever asks; ``selftest`` proves the places."""

from __future__ import annotations

import ctypes
import gc
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchsmith_guards._src.unchanged.native import Library, word

_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8
_slot = ctypes.pythonapi["_PyObject_GetDictPtr"]
_slot.restype = ctypes.c_void_p
_slot.argtypes = (ctypes.py_object,)


def _offset(of: object, value: object) -> int:
    """Where ``of`` has the address of ``value``, which must be in one place."""
    places = range(16, type(of).__basicsize__, 8)
    (found,) = (place for place in places if word(id(of) + place) == id(value))
    return found


class _Sample:
    __slots__ = ("slot",)

    def method(self, a: float = 0.5, *, b: float = 1.5) -> None: ...


TYPE = 8
STAMP = 24  # PEP 509, up to 3.13: ``ma_version_tag``, after the header and ``ma_used``
VALUES = 40  # of a dict: ``ma_values``, after the stamp and ``ma_keys``
LENGTH, ITEMS = 16, 24  # of a list: ``ob_size`` and the pointer to the items
MRO = _offset(_Sample, _Sample.__mro__)
CODE = _offset(_Sample.method, _Sample.method.__code__)
DEFAULTS = _offset(_Sample.method, _Sample.method.__defaults__)
KWDEFAULTS = _offset(_Sample.method, _Sample.method.__kwdefaults__)
CONTENT = _offset(types.CellType(_Sample), _Sample)
REFERENT = _offset(weakref.ref(_Sample), _Sample)


def stamp(table: Mapping[Any, Any]) -> int:
    """The stamp of an exact dict, or of an ``OrderedDict``."""
    return word(id(table) + STAMP)


def dict_slot(obj: object) -> int:
    """Address of the pointer to the instance dict, which is made when it is not there yet; 0 for
    objects without one."""
    return _slot(obj) or 0


def unstamped(table: Mapping[Any, Any]) -> range:
    """Addresses of all words that say what is in a dict whose items are stored without a stamp.
    From 3.13 on the values of an instance dict may lie in the instance, which stores to them: after
    how many there are and can be, a pointer to each, null for what is absent."""
    values = word(id(table) + VALUES) if sys.version_info >= (3, 13) else 0
    return range(values, values + 8 * (1 + word(values) % 256), 8) if values else range(0)


def slot_offset(slot: types.MemberDescriptorType) -> int:
    """Where instances hold the value of a slot: ``d_member->offset``."""
    return word(word(id(slot) + 40) + 16)


def is_mutable_class(cls: type) -> bool:
    """True for classes whose attributes can be set."""
    return cls.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE


def behind(obj: Any) -> Any:
    """The dict behind a mapping proxy, else ``obj`` itself."""
    return gc.get_referents(obj)[0] if type(obj) is types.MappingProxyType else obj


class Table:
    """What the C function compares, in the order in which it was added.

    Attributes:
        distinct: no two of the tensors are one.
        holds: once laid out, whether everything is as it was. Objects whose words come first must
            be alive, others when the words before theirs hold.
    """

    holds: Callable[[], bool]

    def __init__(self, library: Library) -> None:
        self._library = library
        self._words: dict[int, int] = {}
        self._tensors: dict[tuple[int, bool], ctypes.Array[ctypes.c_char]] = {}
        self._memory: object = None
        self.distinct = False

    def add_word(self, address: int, expected: int) -> None:
        """Compare the eight bytes at ``address``."""
        self._words.setdefault(address, expected)

    def add_tensor(self, tensor: torch.Tensor, of_grad: bool = False) -> bool:
        """Compare the metadata of ``tensor``, or of its gradient, with what it is now; False if
        that is not possible."""
        key = id(tensor), of_grad
        described = self._tensors.get(key) or self._library.describe(tensor, of_grad)
        if described is not None:
            self._tensors[key] = described
        return described is not None

    def compares(self, tensor: object) -> bool:
        """Whether the metadata of ``tensor`` is compared."""
        return (id(tensor), False) in self._tensors

    def lay_out(self) -> None:
        """Write the table to memory, where it stays as long as this object lives."""
        words, tensors = self._words, list(self._tensors.values())
        entries = (ctypes.c_uint64 * (2 * len(words)))(*(n for pair in words.items() for n in pair))
        pointers = (ctypes.c_void_p * len(tensors))(*map(ctypes.addressof, tensors))
        size = 4 << len(tensors).bit_length()
        seen, room = (ctypes.c_uint64 * len(tensors))(), (ctypes.c_uint64 * size)()
        parts: tuple[ctypes.Array[Any], ...] = (entries, pointers, seen, room)
        table = (ctypes.c_uint64 * 7)(len(words), len(tensors), *map(ctypes.addressof, parts))
        table[4], table[6] = table[4] if self.distinct else 0, size - 1
        self._memory = (*parts, tensors)
        self.holds = self._library.unchanged(bytes(table))
