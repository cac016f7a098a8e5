"""Errors that torchsmith_guards raises to its users.

Each class has a code, a message template that its keyword arguments fill, and a hint. ``str()``
gives all three.
"""

from __future__ import annotations

from typing import ClassVar


class GuardsError(Exception):
    """Base of all errors of this package.

    Attributes:
        code: stable identifier, for example ``TS-G001``.
        details: the values that fill the message.
    """

    code: ClassVar[str] = "TS-G000"
    template: ClassVar[str] = "{message}"
    hint: ClassVar[str] = ""

    def __init__(self, **details: object) -> None:
        self.details = details
        text = f"[{self.code}] {self.template.format(**details)}"
        super().__init__(f"{text}\nHint: {self.hint}" if self.hint else text)


class GuardError(GuardsError, TypeError):
    """A ``Guard`` was built with an ``expected`` value that its kind cannot use."""

    code = "TS-G001"
    template = "guard of kind {kind} on `{source}` cannot expect {expected!r}"
    hint = "GuardKind documents the form of `expected` for each kind."


class UnguardableSourceError(GuardsError, ValueError):
    """A checker was asked to read a source that is not reachable from its parameters."""

    code = "TS-G002"
    template = "`{source}` cannot be read by a checker with the parameters {params}"
    hint = "Pass the root in `params` or in `bind` (F, G and M for functions and namespaces)."


class DataDependentError(GuardsError, RuntimeError):
    """A decision needs the value of a size that only the data determines."""

    code = "TS-G003"
    template = "cannot decide `{expr}` while tracing: only the data determines {symbols}"
    hint = "State what holds with torch._check(...), or make the branch independent of the data."


class SymbolicTypeError(GuardsError, TypeError):
    """A symbolic number was asked for something that has no symbolic form."""

    code = "TS-G004"
    template = "{operation} has no symbolic form for {operands}"
    hint = "Convert with int(...) to specialise on the value of this call."


class UnsupportedTensorError(GuardsError, TypeError):
    """A tensor has no fake counterpart that this package can make."""

    code = "TS-G005"
    template = "cannot make a fake tensor of {what}"
    hint = "Plain strided tensors and parameters are supported; convert or keep it out."
