"""Errors that torchsmith raises to its users."""

from __future__ import annotations

__all__ = ["ComparisonError", "StructureError"]


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
