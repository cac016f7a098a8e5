"""Checks of arguments that many ops share; each raises the error that names the argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels.errors import ArgumentTypeError, DeviceError, DtypeError, ShapeError

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def is_tensor(op: str, argument: str, value: Any, optional: bool = False) -> None:
    """Raises unless ``value`` is a dense tensor, or None where that is allowed."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided:
            return
        raise ArgumentTypeError(
            op=op,
            argument=argument,
            given=f"a tensor with layout {value.layout}",
            accepted="it must be a dense tensor",
        )
    if optional and value is None:
        return
    accepted = "it must be a tensor or None" if optional else "it must be a tensor"
    raise ArgumentTypeError(
        op=op, argument=argument, given=f"of type {type(value).__name__}", accepted=accepted
    )


def is_number(op: str, argument: str, value: Any, optional: bool = False) -> None:
    """Raises unless ``value`` is an int or float, or None where that is allowed."""
    if isinstance(value, _NUMBERS):
        return
    if optional and value is None:
        return
    accepted = "it must be a number or None" if optional else "it must be a number"
    raise ArgumentTypeError(
        op=op, argument=argument, given=f"of type {type(value).__name__}", accepted=accepted
    )


def is_flag(op: str, argument: str, value: Any) -> None:
    """Raises unless ``value`` is true or false."""
    if not isinstance(value, bool | torch.SymBool):
        raise ArgumentTypeError(
            op=op,
            argument=argument,
            given=f"of type {type(value).__name__}",
            accepted="it must be a bool",
        )


def dtype(op: str, argument: str, tensor: Tensor, accepted: Sequence[torch.dtype]) -> None:
    """Raises unless the tensor's dtype is one of ``accepted``."""
    if tensor.dtype not in accepted:
        names = [str(kind).removeprefix("torch.") for kind in accepted]
        listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        raise DtypeError(op=op, argument=argument, given=tensor.dtype, accepted=listed)


def device(
    op: str, argument: str, tensor: Tensor | None, like: Tensor, name: str = "input"
) -> None:
    """Raises unless ``tensor`` (where there is one) lies where ``like``, called ``name``, lies."""
    if tensor is not None and tensor.device != like.device:
        raise DeviceError(
            op=op, argument=argument, given=tensor.device, accepted=like.device, like=name
        )


def shape(op: str, argument: str, tensor: Tensor | None, expected: Sequence[Any], is_: str) -> None:
    """Raises unless ``tensor`` (where there is one) has the ``expected`` shape.

    Args:
        op: the op's name.
        argument: the argument's name.
        tensor: the argument, or None.
        expected: its required shape.
        is_: what that shape is, for the message: ``the shape of `input```.
    """
    if tensor is None:
        return
    given = tensor.shape
    if given != (expected if isinstance(expected, tuple) else tuple(expected)):
        raise ShapeError(
            op=op,
            argument=argument,
            given=tuple(given),
            accepted=f"it must be {is_}, {tuple(expected)}",
        )


def choice(op: str, argument: str, value: object, accepted: Sequence[str]) -> None:
    """Raises unless ``value`` is one of the ``accepted`` words."""
    if not isinstance(value, str) or value not in accepted:
        words = " or ".join(repr(word) for word in accepted)
        raise ArgumentTypeError(
            op=op, argument=argument, given=repr(value), accepted=f"it must be {words}"
        )
