"""Arrays of NumPy as tensors: a tensor in the array's own memory, which guards and graphs read.

NumPy is not imported: there is no array before the program has imported it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from torchsmith_guards._src.sources.sources import Name, Step


class _Writable:
    """The memory of a read-only array: ``torch.from_numpy`` warns about one, once in a process."""

    def __init__(self, array: Any) -> None:
        data, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (data, False)}
        self.array = array  # whose memory it is


def tensor_of(array: Any) -> torch.Tensor:
    """A tensor in the memory of an array, or of the number of a scalar of NumPy.

    Raises:
        TypeError: tensors have no such elements, or it is no array.
        ValueError: nor such strides or such a byte order.
    """
    if not array.flags.writeable:
        if not array.shape and not hasattr(array, "setflags"):
            raise TypeError("no array")
        scalar = not hasattr(type(array), "__setitem__")
        array = array.__array__() if scalar else sys.modules["numpy"].asarray(_Writable(array))
    return torch.from_numpy(array)


@dataclass(frozen=True, slots=True, eq=False)
class ArraySource(Step):
    """A tensor in the memory of the array, or with the number of the NumPy scalar, at ``base``."""

    def code(self, base: str, name: Name) -> str:
        return f"{name(tensor_of, 'tensor_of')}({base})"


def share_memory(first: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether the storage of ``first`` overlaps with that of another tensor."""
    storage = first.untyped_storage()
    start = storage.data_ptr()
    end = start + storage.nbytes()
    for other in others:
        storage = other.untyped_storage()
        begin = storage.data_ptr()
        if begin < end and start < begin + storage.nbytes():
            return True
    return False
