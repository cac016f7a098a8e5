"""Errors that torchsmith_kernels raises to its users.

Each class has a code and a template; the message says which argument is wrong, what was given and
what is accepted. They derive from the built-in error that eager PyTorch raises for the same
mistake, so existing ``except`` clauses keep working.
"""

from __future__ import annotations

from typing import ClassVar


class KernelsError(RuntimeError):
    """Base of all errors of this package.

    Attributes:
        code: stable identifier, for example ``TS-K001``.
        details: the values that fill the message.
    """

    code: ClassVar[str] = "TS-K000"
    template: ClassVar[str] = "{message}"

    def __init__(self, **details: object) -> None:
        self.details = details
        super().__init__(f"[{self.code}] {self.template.format(**details)}")


class ShapeError(KernelsError, ValueError):
    """A tensor's shape does not fit the other arguments."""

    code = "TS-K001"
    template = "{op}: `{argument}` has shape {given}; {accepted}"


class ArgumentTypeError(KernelsError, TypeError):
    """An argument has the wrong type or value."""

    code = "TS-K002"
    template = "{op}: `{argument}` is {given}; {accepted}"


class DtypeError(KernelsError, NotImplementedError):
    """A tensor's dtype is not supported."""

    code = "TS-K003"
    template = "{op}: `{argument}` has dtype {given}; accepted are {accepted}"


class DeviceError(KernelsError):
    """Tensors lie on different devices."""

    code = "TS-K004"
    template = "{op}: `{argument}` is on {given}; it must be on {accepted}, where `{like}` is"

    def __init__(self, *, like: str = "input", **details: object) -> None:
        super().__init__(like=like, **details)


class TuningError(KernelsError):
    """Tuning cannot run here, or was asked for something that does not exist."""

    code = "TS-K005"
    template = "tune: {message}"


class ArgumentValueError(KernelsError, ValueError):
    """An argument of the right type has a value that is not accepted."""

    code = "TS-K006"
    template = "{op}: `{argument}` is {given}; {accepted}"


class DimensionError(KernelsError, IndexError):
    """A dimension does not exist."""

    code = "TS-K008"
    template = "{op}: `{argument}` is {given}; {accepted}"


class PatchError(KernelsError):
    """A model has nothing that the kernels can take over, or was patched before."""

    code = "TS-K007"
    template = "patch: {message}"


class FallbackWarning(UserWarning):
    """A kernel cannot run on this device; the plain PyTorch reference runs instead."""
