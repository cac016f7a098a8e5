"""Where many tensors lie, found out together: tables of the arguments of many launches."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torchsmith_guards import native_library

_data_ptr = torch.Tensor.data_ptr


def looks(tensors: Sequence[torch.Tensor]) -> bytes:
    """Where the elements of each tensor begin (0 where that takes long to find), then its version,
    in eight bytes each; then a byte for each: 1 if it requires a gradient, 2 if it is a view, 4 a
    leaf, 8 an inference tensor, whose version is 0."""
    library = native_library()
    found = b"" if library is None else library.look(*tensors)
    if found or not tensors:
        return found
    versions = [0 if t.is_inference() else t._version for t in tensors]
    flags = [t.requires_grad + 2 * t._is_view() + 4 * t.is_leaf for t in tensors]
    flags = [flag + 8 * t.is_inference() for flag, t in zip(flags, tensors)]
    return bytes(8 * len(tensors)) + array("q", versions).tobytes() + bytes(flags)


def extent(tensor: torch.Tensor) -> int:
    """How many bytes lie from the first element to the end of the last one."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()


def addresses(tensors: tuple[torch.Tensor, ...]) -> array[int]:
    """Where each tensor begins."""
    library = native_library()
    found = b"" if library is None else library.look(*tensors)
    return array("Q", found[: 8 * len(tensors)] if found else map(_data_ptr, tensors))


def in_memory(tensors: Sequence[torch.Tensor | None]) -> bool:
    """True of tensors whose elements lie in memory as they are, where that is found out quickly."""
    library = native_library()
    return library is not None and library.in_memory(*tensors)


def count_writes(tensors: tuple[torch.Tensor, ...]) -> None:
    """Advance the version counter of each tensor."""
    library = native_library()
    if library is None or not library.bump(*tensors):
        torch.autograd.graph.increment_version(tensors)


def overlap(starts: array[int], extents: array[int], written: bytes, order: array[int]) -> bool:
    """Whether the memory of a written tensor meets that of another one. Starts and extents are in
    bytes; ``order`` is that of the starts at an earlier call, and is now that of these."""
    library = native_library()
    if library is not None:
        words = (each.buffer_info()[0] for each in (starts, extents, order))
        return bool(library.overlap(*words, written, len(order)))
    order[:] = array("q", sorted(order, key=starts.__getitem__))
    any_end = written_end = 0
    for i in order:
        end = starts[i] + extents[i]
        if extents[i] and starts[i] < (any_end if written[i] else written_end):
            return True
        any_end = max(any_end, end)
        written_end = max(written_end, end if written[i] else 0)
    return False


class Rows:
    """Which of known words are the arguments of many launches, row by row."""

    def __init__(self, places: Sequence[int]) -> None:
        """Place by place: the low 32 bits say which word, the next 31 how many bytes after the
        address there the argument is; the last is set for words that are no addresses."""
        self._places = array("q", places)
        self._start, self._count = self._places.buffer_info()

    def __call__(self, words: array[int]) -> tuple[array[int], int]:
        """The arguments, and what low bits any of the addresses has."""
        library = native_library()
        if library is None:
            bits = 0
            table = array("Q")
            for place in self._places:
                table.append(words[place & 0xFFFFFFFF] + (place >> 32 & 0x7FFFFFFF))
                bits |= table[-1] if place >= 0 else 0
            return table, bits
        table = array("Q", bytes(8 * self._count))
        out = table.buffer_info()[0]
        return table, library.gather(words.buffer_info()[0], self._start, self._count, out)
