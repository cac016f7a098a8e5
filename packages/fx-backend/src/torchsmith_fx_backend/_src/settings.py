"""The options of this package: one frozen object, patchable for the current thread or task."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace

from torchsmith_fx_backend.errors import SettingError


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user can choose about compilation.

    Attributes:
        graph_cache: keep whole compiled graphs on disk, so that a later process with the same
            graph skips capture, lowering and scheduling.
        strict: an error where a fault of ours would otherwise run a kernel or a graph through aten.
        verify: check the functional graph after each pass, each kernel, and each launch whose
            accesses are not proved for all sizes (slow; for debugging).
        training: how graphs run whose inputs require gradients: ``compiled``, or ``eager``,
            operator by operator.
        memory_budget: how much memory may be held for the backward pass to save time: with 0, all
            pointwise work that this needs runs again there, keyed draws included, with 1 none does.
        rng: ``keyed``: uniform, normal, integer and Bernoulli draws, dropout among them, are
            computed in kernels from a seed that each call draws from torch's generator, so that
            ``manual_seed`` repeats them. ``eager``: they are the very numbers that eager draws.
        disable: parts of the compiler that are left out, to find which one is at fault: names of
            ``SWITCHES``, and ``lowering:`` with an operator.
        freezing: in inference, parameters and buffers are constants: batch norms are folded into
            convolutions and weights laid out once. Weights take their memory twice. Replaced and
            written parameters are frozen again; writes through ``.data`` are not seen.
        kernels: which operators of the package ``torchsmith-kernels`` stand in for a program's on a
            GPU: ``measured``, those that were measured to be faster, or ``all`` that fit. So far
            that is attention that a program writes out (``disable=["library-kernels"]``: none).
        tuning_seconds: how long the kernels of one graph may be measured in several forms, to keep
            the fastest; 0 measures nothing. By default the modes ``max-autotune`` and
            ``max-autotune-no-cudagraphs`` take up to 60 seconds, others none.
    """

    graph_cache: bool = True
    strict: bool = False
    verify: bool = False
    training: str = "compiled"
    memory_budget: float = 0.5
    rng: str = "keyed"
    disable: tuple[str, ...] = ()
    freezing: bool = False
    kernels: str = "measured"
    tuning_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is none of the choices."""
        names = self.disable.split(",") if isinstance(self.disable, str) else self.disable
        object.__setattr__(self, "disable", tuple(sorted({n.strip() for n in names} - {""})))
        if self.rng not in ("keyed", "eager"):
            raise SettingError(name=f"rng={self.rng!r}", known="rng='keyed', rng='eager'")
        if self.kernels not in ("measured", "all"):
            known = "kernels='measured', kernels='all'"
            raise SettingError(name=f"kernels={self.kernels!r}", known=known)

    @staticmethod
    def from_environment() -> Settings:
        """Defaults, with ``TORCHSMITH_VERIFY=1``, ``TORCHSMITH_STRICT=1``,
        ``TORCHSMITH_GRAPH_CACHE=0``, ``TORCHSMITH_TRAINING=eager`` and
        ``TORCHSMITH_DISABLE=fusion,reuse`` respected."""
        return Settings(
            graph_cache=os.environ.get("TORCHSMITH_GRAPH_CACHE", "1") != "0",
            strict=os.environ.get("TORCHSMITH_STRICT", "0") == "1",
            verify=os.environ.get("TORCHSMITH_VERIFY", "0") == "1",
            training=os.environ.get("TORCHSMITH_TRAINING", "compiled"),
            disable=os.environ.get("TORCHSMITH_DISABLE", ""),  # type: ignore[arg-type]
        )

    def with_options(self, **options: object) -> Settings:
        """A copy with ``options`` replaced.

        Raises:
            SettingError: an option name is unknown.
        """
        known = [f.name for f in fields(self)]
        for name in options:
            if name not in known:
                raise SettingError(name=name, known=", ".join(known))
        return replace(self, **options)  # type: ignore[arg-type]


_CURRENT: ContextVar[Settings | None] = ContextVar("torchsmith_fx_backend_settings", default=None)


def current() -> Settings:
    """The settings in force in this context."""
    return _CURRENT.get() or Settings.from_environment()


@contextlib.contextmanager
def patch(**options: object) -> Iterator[Settings]:
    """Use other ``options`` inside the ``with`` block.

    Raises:
        SettingError: an option name is unknown.
    """
    changed = current().with_options(**options)
    token = _CURRENT.set(changed)
    try:
        yield changed
    finally:
        _CURRENT.reset(token)
