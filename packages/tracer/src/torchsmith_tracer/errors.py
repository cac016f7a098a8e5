"""Errors and warnings that torchsmith_tracer raises to its users.

Every class has a stable ``code``; messages say what happened, where, and what to do.
"""

from __future__ import annotations

__all__ = [
    "BackendError", "ConstraintViolationError", "FullGraphError", "InternalTracerError",
    "RecompileError", "RecompileLimitError", "RecompileLimitWarning", "SkipGraph", "TracerError",
    "TracerWarning", "UnknownBackendError", "UnknownOptionError",
]  # fmt: skip


class TracerError(RuntimeError):
    """Base of the errors of this package.

    Attributes:
        code: stable id, ``TS-T...``.
    """

    code = "TS-T000"


class FullGraphError(TracerError):
    """``fullgraph=True`` was asked for, and the program has a graph break.

    Attributes:
        code: id of the kind of break.
        advice: what to do about it.
        place: ``file:line`` of the user's code, or None when unknown.
    """

    def __init__(self, message: str, *, code: str, advice: str, place: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.advice = advice
        self.place = place


class BackendError(TracerError):
    """A backend raised, or returned something that cannot be called.

    Attributes:
        backend: name of the backend.
    """

    code = "TS-T901"

    def __init__(self, backend: str, problem: str) -> None:
        super().__init__(f"[{self.code}] backend {backend!r} {problem}")
        self.backend = backend


class SkipGraph(Exception):
    """Raised by a backend that wants a function to run eagerly; no warning is given."""


class UnknownBackendError(TracerError, ValueError):
    """No backend of that name is installed."""

    code = "TS-T902"


class UnknownOptionError(TracerError, ValueError):
    """``mode`` or a key of ``options`` is not known to the tracer or to the backend."""

    code = "TS-T903"


class ConstraintViolationError(TracerError):
    """The program needs one value of a size that was marked as dynamic."""

    code = "TS-T907"


class RecompileError(TracerError):
    """No version fits, and the stance ``fail_on_recompile`` refuses to make one."""

    code = "TS-T908"


class RecompileLimitError(TracerError):
    """A function was compiled for too many different inputs, and the settings say to fail."""

    code = "TS-T904"


class InternalTracerError(TracerError):
    """A bug of the tracer, met under ``fullgraph=True``; otherwise the function runs eagerly."""

    code = "TS-T900"


class TracerWarning(UserWarning):
    """Base of the warnings of this package."""


class RecompileLimitWarning(TracerWarning):
    """A function was compiled for too many different inputs; new ones run eagerly."""
