"""The modes of ``torch.compile``, and what is said of those that change nothing here."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch

from torchsmith_fx_backend.errors import ModeError, ModeWarning

_NOTHING_IS_MEASURED = (
    "no alternatives are measured: kernels are the ones that mode='default' chooses"
)
_NO_RECORDING = "no CUDA graph is recorded: kernels are launched one by one, as in mode='default'"
_NO_GRAPHS_ON_A_CPU = (
    "no input is on a GPU, and only there CUDA graphs exist: the graph runs as in mode='default'"
)
_LEAVE_OUT = "Leave the mode out"
_INSTEAD = {
    "reduce-overhead": (
        _NO_RECORDING,
        f"{_LEAVE_OUT}, or record the compiled function yourself with torch.cuda.graph.",
    ),
    "max-autotune": (
        f"{_NOTHING_IS_MEASURED}, and {_NO_RECORDING.partition(':')[0]}",
        f"{_LEAVE_OUT}, or record the compiled function yourself with torch.cuda.graph.",
    ),
    "max-autotune-no-cudagraphs": (_NOTHING_IS_MEASURED, f"{_LEAVE_OUT}."),
}
MODES = ("default", *_INSTEAD)

_said: dict[str, object] = {}


def check(mode: object, tensors: Iterable[object]) -> None:
    """Accept ``mode`` for a graph that reads ``tensors``; the first use of one that is not
    implemented warns.

    Raises:
        ModeError: there is no such mode.
    """
    if mode is None or mode == "default":
        return
    if not isinstance(mode, str) or mode not in _INSTEAD:
        raise ModeError(mode=mode, known=", ".join(MODES))
    mine = object()
    if _said.setdefault(mode, mine) is not mine:  # one thread wins
        return
    happens, advice = _INSTEAD[mode]
    if mode == "reduce-overhead" and not any(
        isinstance(x, torch.Tensor) and x.device.type == "cuda" for x in tensors
    ):
        happens, advice = _NO_GRAPHS_ON_A_CPU, f"{_LEAVE_OUT}."
    warnings.warn(
        f"[{ModeWarning.code}] mode={mode!r} has no effect: {happens}. {advice}",
        ModeWarning,
        stacklevel=3,
    )
