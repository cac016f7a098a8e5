"""``compile``, ``explain``, ``disable``, ``reset``: what users call."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, overload

import torch

from torchsmith_tracer._src import marks
from torchsmith_tracer._src.breaks.report import BreakReport, FrameReport, Log, Place
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.explanation import Explanation
from torchsmith_tracer._src.regions.backends import resolve
from torchsmith_tracer._src.regions.compile_frame import compile_frame
from torchsmith_tracer._src.regions.modules import wrap_module
from torchsmith_tracer._src.regions.region import Region, reset_all, suspends
from torchsmith_tracer._src.settings import Settings
from torchsmith_tracer._src.values.builtins import registry

_F = TypeVar("_F", bound=Callable[..., Any])
BackendName = str | Callable[..., object]


@overload
def compile(
    fn_or_module: _F,
    *,
    backend: BackendName = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    options: Mapping[str, object] | None = ...,
) -> _F: ...
@overload
def compile(
    fn_or_module: None = None,
    *,
    backend: BackendName = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    options: Mapping[str, object] | None = ...,
) -> Callable[[_F], _F]: ...


def compile(
    fn_or_module: Callable[..., Any] | None = None,
    *,
    backend: BackendName = "eager",
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Any:
    """Compile a function or module; use it as a function or as a decorator.

    Nothing is traced before the first call. Each kind of input that the compiled code relies on
    is guarded; other inputs are compiled anew.

    Args:
        fn_or_module: a function, bound method, ``functools.partial``, callable object or
            ``nn.Module``. Left out: returns a decorator.
        backend: a name from the entry-point group ``torchsmith.backends``, or a callable
            ``backend(gm, example_inputs) -> callable``.
        fullgraph: raise instead of splitting the program at a graph break.
        dynamic: True: sizes are symbolic from the start; False: never; None: those that changed.
        mode: passed to backends that have modes; one warning says that others ignore it.
        options: settings of the tracer (``recompile_limit`` ...) and options of the backend.

    Returns:
        A function with the same signature, or an object of the module's own class.

    Raises:
        TypeError: ``fn_or_module`` cannot be called.
        UnknownBackendError, UnknownOptionError: an unknown name; the message lists the valid ones.
    """
    choice, own = resolve(backend, mode, options)
    if fn_or_module is None:
        return functools.partial(
            compile,
            backend=backend,
            fullgraph=fullgraph,
            dynamic=dynamic,
            mode=mode,
            options=options,
        )
    if not callable(fn_or_module):
        raise TypeError(
            f"compile needs a function, a module or another callable, not "
            f"{type(fn_or_module).__name__}"
        )
    settings = replace(
        Settings.current().with_options(own), fullgraph=bool(fullgraph), dynamic=dynamic
    )
    return compile_in(Region(choice, settings, compile_frame), fn_or_module)


def compile_in(region: Region, target: Callable[..., Any]) -> Any:
    """Compile ``target`` as the entry of ``region``."""
    original = marks.original_of(target)
    if original is not None:
        target = original  # type: ignore[assignment]
    if marks.is_disabled(target):
        return target
    match target:
        case torch.nn.Module():
            return wrap_module(region, target)
        case types.FunctionType():
            return _entry(region, target, target)
        case types.MethodType():
            if isinstance(target.__func__, types.FunctionType):
                return _entry(region, target.__func__, target, target.__self__)
        case functools.partial():
            made = functools.partial(compile_in(region, target.func))
            # The very same keywords: the program may change them.
            made.__setstate__((made.func, target.args, target.keywords, target.__dict__))  # type: ignore[attr-defined]
            return made
    method = None if isinstance(target, type) else type(target).__call__
    if isinstance(method, types.FunctionType):
        return _entry(region, method, target, target)
    return _entry(region, _forwarder(target), target)


def _entry(
    region: Region, fn: types.FunctionType, target: Callable[..., Any], *bound: object
) -> Any:
    if suspends(fn.__code__):
        return _eager(region, fn, target, *bound)
    owner = bound[0] if bound else None
    kind = type(owner) if isinstance(owner, torch.nn.Module) else None
    how = "class" if bound and owner is target else "code"
    return _marked(region, fn, target, region.record(fn, kind).dispatcher(fn, *bound, follows=how))


def _eager(
    region: Region, fn: types.FunctionType, target: Callable[..., Any], *bound: object
) -> Any:
    """A generator function or coroutine function: a copy, so that it is still known as one."""
    code = fn.__code__
    place = Place(code.co_filename, code.co_firstlineno, code.co_qualname)
    found = BreakReport.of(Unsupported("suspends", what=code.co_qualname), [place], resumed=False)
    if region.settings.fullgraph:
        raise found.error()
    region.log.frames.append(FrameReport(code.co_qualname, place, break_=found, eager=True))
    copy = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    out = _marked(region, fn, target, copy)
    return types.MethodType(out, bound[0]) if bound else out


def _marked(
    region: Region, fn: types.FunctionType, target: Callable[..., Any], out: types.FunctionType
) -> types.FunctionType:
    """``out`` with the names and attributes of what it was compiled from."""
    for name in functools.WRAPPER_ASSIGNMENTS:
        try:
            setattr(out, name, getattr(target, name))
        except (AttributeError, TypeError):
            continue  # partials and callable objects have no such name
    out.__dict__.update(fn.__dict__)
    marks.mark(out, marks.ORIGINAL, target)
    out.__dict__["__wrapped__"] = out.__dict__[marks.TORCH_INLINE] = target
    out.__dict__["_torchsmith_region"] = region
    return out


def _forwarder(target: Callable[..., Any]) -> types.FunctionType:
    """A Python function that calls a builtin or class, so that there is code to trace."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return forward  # type: ignore[return-value]


def explain(fn: Callable[..., Any], **compile_options: Any) -> Callable[..., Explanation]:
    """``explain(fn)(*args)`` calls ``fn`` compiled, once and afresh, and reports what happened.

    Args:
        fn: what ``compile`` accepts, or something it returned.
        compile_options: keywords of ``compile``.

    Returns:
        A function with the arguments of ``fn`` that returns an ``Explanation``.
    """
    original = marks.original_of(fn)
    target: Callable[..., Any] = fn if original is None else original  # type: ignore[assignment]
    if not callable(target):
        raise TypeError(f"explain needs a callable, not {type(fn).__name__}")

    def run(*args: Any, **kwargs: Any) -> Explanation:
        compiled = compile(target, **compile_options)
        log = _log_of(compiled)
        log.detailed = True
        result = compiled(*args, **kwargs)
        name = getattr(target, "__qualname__", type(target).__qualname__)
        return Explanation(name, tuple(log.frames), tuple(log.recompiles), result)

    return run


def _log_of(compiled: Any) -> Log:
    while isinstance(compiled, functools.partial):
        compiled = compiled.func
    region: Region | None = getattr(compiled, "_torchsmith_region", None)
    return Log() if region is None else region.log  # none: it is disabled


@overload
def disable(fn: _F, *, reason: str | None = ...) -> _F: ...
@overload
def disable(fn: None = None, *, reason: str | None = ...) -> Callable[[_F], _F]: ...


def disable(fn: Any = None, *, reason: str | None = None) -> Any:
    """Mark a function or module as one that runs eagerly, also when compiled code calls it.

    The call is a graph break, whose report gives the ``reason``. Returns a new function; a module
    is marked itself. Without ``fn``: a decorator.
    """
    if fn is None:
        return functools.partial(disable, reason=reason)
    if isinstance(fn, torch.nn.Module):
        fn.__dict__[marks.DISABLED] = reason or True
        return fn
    if not callable(fn):
        raise TypeError(f"disable needs a callable, not {type(fn).__name__}")

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    marks.mark(run, marks.DISABLED, reason or True)  # type: ignore[arg-type]
    return run


def allow_in_graph(fn: _F) -> _F:
    """Mark a callable as one that goes into graphs as a single node, unseen by the tracer.

    A backend may still trace through it. It must compute on its arguments alone, tensors, numbers
    and plain containers of these, and return such; effects that it has are lost.
    """
    if not callable(fn):
        raise TypeError(f"allow_in_graph needs a callable, not {type(fn).__name__}")
    marks.allow(fn)
    return fn


def substitute_in_graph(original: Callable[..., object]) -> Callable[[_F], _F]:
    """A decorator for a Python function that compiled code calls in place of ``original``, which
    is usually a function in C that cannot be looked into. Native code still calls ``original``.

    Raises:
        TypeError: ``original`` is no function, or the two have different parameters.
    """
    if isinstance(original, type) or not isinstance(original, registry.Replaceable):
        raise TypeError(f"substitute_in_graph needs a function, not {original!r}")

    def register(fn: _F) -> _F:
        if not isinstance(fn, types.FunctionType):
            raise TypeError(f"the substitute must be a Python function, not {fn!r}")
        registry.substitute(original, fn)
        return fn

    return register


def reset() -> None:
    """Forget all compiled code and history; the next calls compile afresh."""
    reset_all()
