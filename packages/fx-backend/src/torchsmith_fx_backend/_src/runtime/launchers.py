"""Where devices plug in: who compiles and launches the kernels of which device type.

A ``Launcher`` turns ``KernelRequest``s into ``LoadedKernel``s. Their ``launch`` is called by the
generated wrapper with positional arguments only: one data pointer (``int``) per kernel argument,
then one number per kernel symbol. A launcher is imported the first time that a plan needs it.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch

from torchsmith_fx_backend._src.runtime.cache import Cache

if TYPE_CHECKING:
    from torchsmith_fx_backend._src.codegen.triton.config import Config
    from torchsmith_fx_backend._src.loops.ir import Kernel


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """One distinct kernel that a graph needs, and the comment that its source shall carry.

    ``config`` is one of the launcher's ``candidates``; None leaves it to the launcher. ``each``
    says that runs which do not depend on each other will be asked for together.
    """

    kernel: Kernel
    device: torch.device
    origins: tuple[str, ...] = ()
    config: Config | None = None
    each: bool = False


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel that is ready to run.

    Attributes:
        key: content address, understood by ``Launcher.restore`` in another process.
        name: the function's name in ``source``.
        source: the generated source text.
        launch: ``launch(*data_pointers, *symbol_values)``; returns None.
        each: ``each(table, bits)``: the same for any number of independent runs, whose arguments
            lie in a table, one row after the other; which of their low bits any pointer in it has.
    """

    key: str
    name: str
    source: str
    launch: Callable[..., object]
    each: Callable[[array[int], int], object] | None


class Unavailable(Exception):
    """This launcher cannot work here (no compiler, no device); the graph runs through aten."""


class KernelFailedError(Exception):
    """These kernels cannot be printed, compiled or loaded; others can. They go through aten."""

    def __init__(self, failed: Sequence[tuple[KernelRequest, Exception]]) -> None:
        """Which kernels, each with what went wrong."""
        self.failed = tuple(failed)
        super().__init__("; ".join(f"{_label(r)}: {type(e).__name__}: {e}" for r, e in failed))


def _label(request: KernelRequest) -> str:
    return " + ".join(request.origins) or "a kernel"


class Launcher(Protocol):
    """Compiles and loads kernels for one device type."""

    def expect(self) -> None:
        """Kernels will be asked for soon: what is slow to start can start now."""

    def load(self, requests: Sequence[KernelRequest], cache: Cache) -> list[LoadedKernel]:
        """One loaded kernel per request, in order.

        Raises:
            Unavailable: kernels cannot be built here; the launcher has warned about it once.
            KernelFailedError: some cannot be built, for reasons of their own.
        """

    def restore(
        self, keys: Sequence[str], device: torch.device, cache: Cache
    ) -> list[LoadedKernel] | None:
        """The kernels of these content addresses from the cache, or None if any is missing."""


@runtime_checkable
class Tunable(Protocol):
    """A launcher whose kernels have several forms."""

    def candidates(
        self, kernel: Kernel, sizes: Mapping[str, Any], device: torch.device
    ) -> tuple[tuple[Config, ...], str]:
        """Configurations of ``kernel``, the launcher's own choice first; what they, and their
        speed, depend on: the device's name and the versions of what prints and compiles.

        Raises:
            Unavailable: kernels cannot be built here.
        """

    def attempt(
        self, requests: Sequence[KernelRequest], cache: Cache
    ) -> list[LoadedKernel | Exception]:
        """As ``load``; what is wrong with a kernel takes its place, and nothing is warned."""


_PACKAGE = "torchsmith_fx_backend._src.runtime"

# device type -> module and class; imported on first use, so that a CPU program never loads triton
_LAUNCHERS: dict[str, tuple[str, str]] = {
    "cpu": (f"{_PACKAGE}.native", "NativeLauncher"),
    "cuda": (f"{_PACKAGE}.gpu", "GpuLauncher"),
}
_instances: dict[str, Launcher] = {}


def launcher_for(device: torch.device) -> Launcher:
    """The launcher of ``device``'s type, one per process.

    Raises:
        Unavailable: nothing generates kernels for this device type.
    """
    instance = _instances.get(device.type)
    if instance is None:
        if device.type not in _LAUNCHERS:
            raise Unavailable(f"no kernels are generated for device type {device.type!r}")
        module, name = _LAUNCHERS[device.type]
        factory = cast("Callable[[], Launcher]", getattr(importlib.import_module(module), name))
        instance = _instances[device.type] = factory()
    return instance


def expect(values: Iterable[object]) -> None:
    """Have the launchers of these tensors' devices get ready."""
    types = {value.device.type for value in values if isinstance(value, torch.Tensor)}
    for each in types & _LAUNCHERS.keys():
        launcher_for(torch.device(each)).expect()


_WORK: ContextVar[Callable[[], object] | None] = ContextVar("_WORK", default=None)


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Have ``work`` done in this block if a launcher waits for other processes, at most once."""
    token = _WORK.set(work)
    try:
        yield
    finally:
        _WORK.reset(token)


def use_wait() -> None:
    """Do what there is to do while kernels are compiled elsewhere. Launchers call it."""
    work = _WORK.get()
    if work is not None:
        _WORK.set(None)
        work()
