"""Errors that torchsmith_fx_backend raises to its users.

Each class has a code, a message template that its keyword arguments fill, and a hint. ``str()``
gives all three.
"""

from __future__ import annotations

from typing import ClassVar


class BackendError(RuntimeError):
    """Base of all errors of this package.

    Attributes:
        code: stable identifier, for example ``TS-B001``.
        details: the values that fill the message.
    """

    code: ClassVar[str] = "TS-B000"
    template: ClassVar[str] = "{message}"
    hint: ClassVar[str] = ""

    def __init__(self, **details: object) -> None:
        self.details = details
        text = f"[{self.code}] {self.template.format(**details)}"
        super().__init__(f"{text}\nHint: {self.hint}" if self.hint else text)


class StageError(BackendError):
    """A stage of the compile driver failed on a graph that it should have accepted."""

    code = "TS-B001"
    template = "stage `{stage}` failed: {error}"
    hint = (
        "This is a fault of the backend, not of your program. backend='eager' runs the same graph "
        "without it; set TORCHSMITH_LOGS=graph,aot,schedule to see what each stage was given."
    )


class UnsupportedError(BackendError):
    """The graph does something that this backend does not compile; it can run it eagerly."""

    code = "TS-B002"
    template = "not compiled: {what}"
    hint = "The graph runs operator by operator instead; the result is the same."


class OwnLeafError(UnsupportedError):
    """A result is a tensor that only the graph itself makes require a gradient."""


class DataDependentError(BackendError):
    """Tracing real tensors met an operator that reads a value out of a tensor."""

    code = "TS-B003"
    template = (
        "{op} reads the value of a tensor while tracing, so the graph would only be right for this "
        "input; it looks like data-dependent control flow"
    )
    hint = "Trace with tracing_mode='symbolic', or compute the decision with torch.where."


class UntrackedError(BackendError):
    """A tensor or symbolic number is used in a trace that did not produce it."""

    code = "TS-B004"
    template = "{what} is not tracked by this trace"
    hint = "Pass it as an input of the traced function."


class TracingModeError(BackendError, AssertionError, ValueError):
    """``tracing_mode`` names no mode."""

    code = "TS-B005"
    template = "tracing_mode is {mode!r}; it must be one of 'real', 'fake', 'symbolic'"


class SettingError(BackendError, TypeError):
    """An option name that does not exist."""

    code = "TS-B006"
    template = "unknown option {name!r}; known options: {known}"


class ModeError(BackendError, ValueError):
    """A mode that does not exist."""

    code = "TS-B007"
    template = "unknown mode {mode!r}; known modes: {known}"


class ModeWarning(UserWarning):
    """A mode does not do for a graph what it is there for; the message says why."""

    code: ClassVar[str] = "TS-B008"


class FreezingError(BackendError):
    """A graph was to be frozen that is called for its gradients, too."""

    code = "TS-B009"
    template = "options={{'freezing': True}} is for inference, but an input requires gradients"
    hint = "Call under torch.no_grad() or inference_mode(), or use model.requires_grad_(False)."
