"""The modes of ``torch.compile``, and what is said where one cannot do what it promises."""

from __future__ import annotations

import functools
import warnings

from torchsmith_guards.records import recorder

from torchsmith_fx_backend.errors import ModeError, ModeWarning

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
RECORDING = ("reduce-overhead", "max-autotune")  # calls are recorded and replayed
MEASURING = ("max-autotune", "max-autotune-no-cudagraphs")  # forms of kernels are measured
TUNING_SECONDS = 60.0  # of a graph, in the modes that measure


def check(mode: object) -> str:
    """``mode`` by name.

    Raises:
        ModeError: there is no such mode.
    """
    if mode is None:
        return "default"
    if not isinstance(mode, str) or mode not in MODES:
        raise ModeError(mode=mode, known=", ".join(MODES))
    return mode


def skip(mode: str, reason: str) -> None:
    """Count a graph that is not recorded, and say why."""
    recorder.count("recordings", "skipped")
    not_recorded(mode, reason)


@functools.cache
def not_recorded(mode: str, reason: str) -> None:
    """Say, once per reason, that a graph runs as in mode ``default``."""
    text = f"a graph is not recorded, its kernels are launched one by one: {reason}"
    warnings.warn(f"[{ModeWarning.code}] mode={mode!r}: {text}.", ModeWarning, stacklevel=4)
