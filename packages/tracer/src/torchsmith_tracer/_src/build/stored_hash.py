"""The hashes under which a dict or set holds its objects. An object's class may compute another one
by now: then looking the object up does not find it."""

from __future__ import annotations

import ctypes

_PySet_NextEntry = ctypes.pythonapi["_PySet_NextEntry"]
_PySet_NextEntry.argtypes = (ctypes.py_object, *(ctypes.c_void_p,) * 3)


def stored_hashes(table: object) -> dict[int, int] | None:
    """The hash of each key or element by its ``id``, without asking it; None for containers that
    do not tell. An equal one under the same hash may be left out."""
    if isinstance(table, dict) and type(table).__iter__ is dict.__iter__:
        table = frozenset(dict.copy(table))  # both take the hashes over
    if not isinstance(table, set | frozenset):
        return None
    place, held, number = ctypes.c_ssize_t(0), ctypes.c_void_p(), ctypes.c_ssize_t()
    found: dict[int, int] = {}
    while _PySet_NextEntry(table, *map(ctypes.byref, (place, held, number))):
        found[held.value or 0] = number.value
    return found
