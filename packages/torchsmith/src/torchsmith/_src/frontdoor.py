"""The tracer's entry points with ``smith`` as the default backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, overload

import torchsmith_tracer
from torchsmith_fx_backend import smith
from torchsmith_tracer import Explanation

from torchsmith._src.repro import watch as watching

F = TypeVar("F", bound=Callable[..., object])
Backend = str | Callable[..., Callable[..., object]]
Options = Mapping[str, object]


@overload
def compile(
    model: F,
    *,
    backend: Backend = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    options: Options | None = ...,
    verify: bool = ...,
) -> F: ...


@overload
def compile(
    model: None = None,
    *,
    backend: Backend = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    options: Options | None = ...,
    verify: bool = ...,
) -> Callable[[F], F]: ...


def compile(
    model: F | None = None,
    *,
    backend: Backend = "smith",
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Options | None = None,
    verify: bool = False,
) -> F | Callable[[F], F]:
    """Compile a function or module; also usable as a decorator. ``torch.compile``'s signature.

    Args:
        model: a function, method, callable or ``nn.Module``; without it a decorator is returned.
        backend: a registered name (``smith``, ``eager``) or ``f(graph_module, inputs)``.
        fullgraph: raise a clear error at the first graph break instead of splitting.
        dynamic: True makes sizes symbolic at once, False never, None once they change.
        mode: as for ``torch.compile``: ``default``, ``reduce-overhead`` (CUDA graphs),
            ``max-autotune-no-cudagraphs`` (forms of kernels are measured) or ``max-autotune``
            (both). A warning (``TS-B008``) says where one cannot help; others are an error.
        options: settings by name; an unknown one is an error that lists the valid ones.
        verify: compare each graph once, when it is compiled, with eager, in low precision with
            float64 as the referee; an error says where it first differs, and which stage is at
            fault.

    Returns:
        A callable with the same signature; for a module, an object that is that module for every
        purpose: ``isinstance``, ``state_dict``, attributes, pickling.

    Raises:
        TypeError: ``model`` is not callable.
        torchsmith_tracer.errors.TracerError: unknown backend, mode or option.
        torchsmith.errors.VerificationError: with ``verify``, at the call that compiles the graph.
    """
    watch = watching.current()
    chosen: Backend = watching.with_backend(watch, backend, verify)
    if watch.backend is not None:
        mode = options = None  # they were meant for another one
    if isinstance(chosen, str) and chosen == "smith":
        chosen = smith  # which the tracer would look for among all that is installed

    def now(fn: F) -> F:
        compiled = torchsmith_tracer.compile(
            fn, backend=chosen, fullgraph=fullgraph, dynamic=dynamic, mode=mode, options=options
        )
        return watching.afresh(compiled) if watch.fresh else compiled

    return now if model is None else now(model)


def explain(
    model: Callable[..., object],
    *,
    backend: Backend = "smith",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Explanation]:
    """``explain(f)(*args)`` compiles and runs ``f`` and reports graphs, breaks, guards, kernels."""
    return torchsmith_tracer.explain(model, backend=backend, mode=mode, options=options)


def reset() -> None:
    """Forget all compiled code of this process; the cache on disk stays."""
    torchsmith_tracer.reset()
