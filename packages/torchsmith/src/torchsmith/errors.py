"""Errors that torchsmith raises to its users."""

from __future__ import annotations

from torchsmith_tracer.errors import BackendError

__all__ = [
    "ComparisonError",
    "MinifyError",
    "RecordWarning",
    "StructureError",
    "VerificationError",
]


class StructureError(AssertionError):
    """Two results have different structures, so there is nothing to compare leaf by leaf."""

    code = "TS-S001"

    def __init__(self, problem: str) -> None:
        super().__init__(f"[{self.code}] {problem}")


class ComparisonError(RuntimeError):
    """A result holds an object that has no meaning as one."""

    code = "TS-S002"

    def __init__(self, problem: str) -> None:
        super().__init__(f"[{self.code}] {problem}")


class VerificationError(BackendError):
    """``verify=True`` was asked for, and a compiled graph does not compute what eager does."""

    code = "TS-S003"


class RecordWarning(UserWarning):
    """Failures cannot be recorded where ``TORCHSMITH_REPRO`` says; the program goes on."""

    code = "TS-S004"


class MinifyError(RuntimeError):
    """There is nothing to minify: the program does not fail, or it fails without us, too."""

    code = "TS-S005"

    def __init__(self, problem: str) -> None:
        super().__init__(f"[{self.code}] {problem}")
