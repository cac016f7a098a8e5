"""The hash under which a dict or set holds an object. The object's class may compute another one by
now: then looking the object up does not find it."""

from __future__ import annotations

import ctypes

_PyDict_GetItem_KnownHash = ctypes.pythonapi["_PyDict_GetItem_KnownHash"]
_PyDict_GetItem_KnownHash.argtypes = (ctypes.py_object, ctypes.py_object, ctypes.c_ssize_t)
_PyDict_GetItem_KnownHash.restype = ctypes.c_void_p
_PySet_NextEntry = ctypes.pythonapi["_PySet_NextEntry"]
_PySet_NextEntry.argtypes = (ctypes.py_object, *(ctypes.c_void_p,) * 3)


def is_found(table: object, key: object, number: int) -> bool:
    """Whether a dict or set finds its own ``key`` when that hashes to ``number``. Runs no
    ``__hash__``. True for other containers."""
    if isinstance(table, dict):
        return _PyDict_GetItem_KnownHash(table, key, number) is not None
    if not isinstance(table, set | frozenset):
        return True
    place, found, stored = ctypes.c_ssize_t(0), ctypes.c_void_p(), ctypes.c_ssize_t()
    while _PySet_NextEntry(table, *map(ctypes.byref, (place, found, stored))):
        if found.value == id(key):
            return stored.value == number
    return False
