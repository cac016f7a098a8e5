"""Torch's context managers: grad mode, inference mode, autocast.

Entering one emits a node that changes the state and changes it for real while tracing, so that
fake operators and queries see it; the change is undone when the trace rolls back. What is still
open at the end of the graph is left inside it and entered again by generated code
(``Graph.contexts``, ``reenter``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx
from torchsmith_guards import AttrSource, Source

from torchsmith_tracer._src import torch_private as private
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Graph, Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, MethodOf, Value
from torchsmith_tracer._src.values.constants import FALSE, NONE, TRUE


class ContextValue(Value):
    """Base: an instance of one of torch's context manager classes.

    Attributes:
        cls: its class.
        entered: how often traced code has entered it and not left.
        real: the object itself if it existed before the trace.
    """

    __slots__ = ("cls", "entered", "real")
    gives_itself = False  # what ``__enter__`` returns, else None

    def __init__(self, cls: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.cls = cls
        self.entered = 0
        self.real: object = None

    def describe(self) -> str:
        return f"context manager {self.cls.__name__}"

    def getattr(self, tx: Trace, name: str) -> Value:
        stored = tx.journal.load_attr(self, name)
        if isinstance(stored, Value):
            return stored
        if name in ("__enter__", "__exit__", "clone", "_recreate_cm"):
            return ContextMethod(self, name)
        if name == "__class__":
            return tx.interp.type_of(self)
        raise Unsupported("unsupported-slot", what=f"attribute {name!r} of {self.describe()}")

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        """Use as a decorator: ``ctx(fn)``, by torch's own Python code."""
        fn = tx.builder.wrap_new(private.context_decorator)
        again = ContextMethod(self, "clone" if hasattr(self.cls, "clone") else "_recreate_cm")
        return tx.interp.call(fn, [again, *args], kwargs)

    def bool(self, tx: Trace) -> bool:
        return True

    def hash_key(self, tx: Trace) -> object:
        return tx.interp.identity_key(self)

    def enter(self, tx: Trace) -> None:
        """``__enter__``: state change, node, bookkeeping."""

    def exit(self, tx: Trace) -> None:
        """``__exit__``."""

    def clone(self, tx: Trace) -> ContextValue:
        """A fresh context manager with the same arguments."""
        raise NotImplementedError(type(self).__name__)  # every concrete class defines it

    def close_in_graph(self, graph: Graph) -> None:
        """Append the nodes that leave the context at the end of the graph."""

    def release(self) -> None:
        """Undo the real change of state that entering made while tracing."""

    def reenter(self, cg: Emitter) -> None:
        """Emit code that enters the real context manager."""
        cg.statement(cg.method(self, "__enter__"))

    def _count(self, tx: Trace, by: int) -> None:
        tx.journal.assign(self, "entered", self.entered + by)

    def _exit_graph(self, tx: Trace) -> list[GradModeValue]:
        """Note that it is left. Leaving overwrites the grad modes that were set meanwhile."""
        inner = tx.graph.contexts[tx.graph.contexts.index(self) + 1 :]
        tx.graph.exit_context(self)
        self._count(tx, -1)
        return [context for context in inner if isinstance(context, GradModeValue)]


class ContextMethod(MethodOf["ContextValue"]):
    """``__enter__``, ``__exit__`` or ``clone`` of a context manager, bound."""

    __slots__ = ()

    def python_type(self) -> type:
        return type(self.owner.enter)

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        if self.name in ("clone", "_recreate_cm"):
            return self.owner.clone(tx)
        if self.name == "__enter__":
            self.owner.enter(tx)
            return self.owner if self.owner.gives_itself else NONE
        if self.owner.entered:
            self.owner.exit(tx)
        else:
            _leave_existing(tx, self.owner)
        return FALSE if isinstance(self.owner, AutocastValue) else NONE

    def getattr(self, tx: Trace, name: str) -> Value:
        if name != "__self__" and not hasattr(self.owner.enter, name):
            raise self.no_attribute(tx, name)
        return super().getattr(tx, name)


def _toggle(graph: Graph, mode: bool) -> None:
    """A grad-mode node."""
    graph.add_call("call_function", private.set_grad_enabled, (mode,), {}, None)


class GradModeValue(ContextValue):
    """``torch.no_grad()``, ``enable_grad()``, ``set_grad_enabled(mode)``.

    The latter changes the mode when it is made (``apply``), and again when it is entered.
    """

    __slots__ = ("immediate", "mode", "previous")

    def __init__(self, cls: type, mode: bool, source: Source | None = None) -> None:
        super().__init__(cls, source)
        self.mode = mode
        self.previous: list[bool] = []
        self.immediate = False

    def _set(self, tx: Trace, mode: bool) -> None:
        refuse_watched(tx)
        before = torch.is_grad_enabled()
        _toggle(tx.graph, mode)
        tx.graph.record(lambda: private.set_grad_enabled(before))
        private.set_grad_enabled(mode)

    def apply(self, tx: Trace) -> GradModeValue:
        """The effect of making a ``torch.set_grad_enabled`` object."""
        self._push(tx)
        self.immediate = True
        self._set(tx, self.mode)
        return self

    def _push(self, tx: Trace) -> None:
        self.previous.append(torch.is_grad_enabled())
        tx.graph.record(self.previous.pop)  # type: ignore[arg-type]
        tx.graph.enter_context(self)
        self._count(tx, 1)

    def enter(self, tx: Trace) -> None:
        if not self.immediate or not self.previous:
            self._push(tx)
        self._set(tx, self.mode)

    def exit(self, tx: Trace) -> None:
        previous = self.previous.pop()
        tx.graph.record(lambda: self.previous.append(previous))
        crossed = self._exit_graph(tx)
        self._set(tx, previous)
        if crossed:
            GradModeValue(torch.set_grad_enabled, previous).apply(tx)

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        if self.cls is torch.set_grad_enabled:
            if not self.previous:
                raise Unsupported("unsupported-slot", what="decorating with such a context")
            self.exit(tx)  # as a decorator it changes nothing until the function is called
        return super().call(tx, args, kwargs)

    def clone(self, tx: Trace) -> ContextValue:
        made = GradModeValue(self.cls, self.mode)
        return made.apply(tx) if self.cls is torch.set_grad_enabled else made

    def close_in_graph(self, graph: Graph) -> None:
        _toggle(graph, self.previous[-1])

    def release(self) -> None:
        private.set_grad_enabled(self.previous[-1])

    def reenter(self, cg: Emitter) -> None:
        if self.immediate and self.source is None:
            cg.expr(self)  # making the object changes the mode
            return
        super().reenter(cg)

    def reconstruct(self, cg: Emitter) -> str:
        mode = [cg.const(self.mode)] if self.cls is torch.set_grad_enabled else []
        return cg.call(self.cls, *mode)


class PairedContext(ContextValue):
    """A context where entering gives an object that leaving needs.

    Attributes:
        stack: the nodes that enter it, each with what the real change of state gave.
        made_by, entry, end: the class; the functions that enter and leave.
    """

    __slots__ = ("stack",)
    made_by: type
    entry: Callable[..., object]
    end: Callable[..., object]

    def __init__(self, cls: type, source: Source | None = None) -> None:
        super().__init__(cls, source)
        self.stack: list[tuple[fx.Node, object]] = []

    def arguments(self) -> tuple[object, ...]:
        """What the class and ``entry`` are called with."""
        raise NotImplementedError(type(self).__name__)  # every concrete class defines it

    def enter(self, tx: Trace) -> None:
        refuse_watched(tx)
        node = tx.graph.add_call("call_function", self.entry, self.arguments(), {}, None)
        self.stack.append((node, self.entry(*self.arguments())))

        def undo() -> None:
            self.end(self.stack.pop()[1])  # perhaps of another entry by then

        tx.graph.record(undo)
        tx.graph.enter_context(self)
        self._count(tx, 1)

    def exit(self, tx: Trace) -> None:
        node, real = self.stack.pop()
        tx.graph.add_call("call_function", self.end, (node,), {}, None)
        self.end(real)
        tx.graph.record(lambda: self.stack.append((node, self.entry(*self.arguments()))))
        if self._exit_graph(tx) and self.cls is torch.inference_mode:
            GradModeValue(torch.set_grad_enabled, torch.is_grad_enabled()).apply(tx)

    def close_in_graph(self, graph: Graph) -> None:
        graph.add_call("call_function", self.end, (self.stack[-1][0],), {}, None)

    def release(self) -> None:
        self.end(self.stack[-1][1])

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(self.made_by, *map(cg.const, self.arguments()))


class InferenceModeValue(PairedContext):
    """``torch.inference_mode(mode)``."""

    __slots__ = ("mode",)
    made_by = torch.inference_mode
    entry = staticmethod(private.enter_inference_mode)
    end = staticmethod(private.exit_inference_mode)

    def __init__(self, cls: type, mode: bool, source: Source | None = None) -> None:
        super().__init__(cls, source)
        self.mode = mode

    def arguments(self) -> tuple[object, ...]:
        return (self.mode,)

    def clone(self, tx: Trace) -> ContextValue:
        return InferenceModeValue(self.cls, self.mode)


class AutocastValue(PairedContext):
    """``torch.autocast(device_type, dtype, enabled, cache_enabled)``; ``host`` is a real autocast
    object with the same arguments, which it has validated."""

    __slots__ = ("host",)
    gives_itself = True
    made_by = torch.autocast
    entry = staticmethod(private.enter_autocast)
    end = staticmethod(private.exit_autocast)

    def __init__(self, host: torch.autocast, source: Source | None = None) -> None:
        super().__init__(type(host), source)
        self.host = host

    def arguments(self) -> tuple[object, ...]:
        host = self.host
        return host.device, host.fast_dtype, host._enabled, host._cache_enabled

    def enter(self, tx: Trace) -> None:
        if self.stack:
            raise Unsupported("unsupported-slot", what="entering an autocast object twice")
        super().enter(tx)

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        fn = tx.builder.wrap_new(private.autocast_decorator)
        return tx.interp.call(fn, [self, *args], kwargs)

    def clone(self, tx: Trace) -> ContextValue:
        return AutocastValue(torch.autocast(*self.arguments()))  # type: ignore[arg-type]


class NullContextValue(ContextValue):
    """A context manager without effect on results: profiler ranges."""

    __slots__ = ()
    gives_itself = True

    def enter(self, tx: Trace) -> None:
        tx.graph.enter_context(self)
        self._count(tx, 1)

    def exit(self, tx: Trace) -> None:
        tx.graph.exit_context(self)
        self._count(tx, -1)

    def clone(self, tx: Trace) -> ContextValue:
        return type(self)(self.cls)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(self.cls, cg.const("compiled"))


class TorchFunctionDisabled(NullContextValue):
    """``torch._C.DisableTorchFunctionSubclass()`` and its kin: operators ask no class."""

    __slots__ = ()
    gives_itself = False

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(self.cls)


class FunctionMode:
    """A torch-function mode that traced code has put on the stack; see ``function_modes.py``.

    Attributes:
        mode: the mode, or the device of a device context.
        watches: whether it is asked about every operator; a device context is not.
        suspended: whether it is being asked, and so off the stack.
    """

    def __init__(self, mode: Value, *, watches: bool) -> None:
        self.mode = mode
        self.watches = watches
        self.suspended = False

    def close_in_graph(self, graph: Graph) -> None:
        """Nothing: the graph has what the mode made of the operators."""

    def release(self) -> None:
        """Nothing: the real stack did not change."""

    def reenter(self, cg: Emitter) -> None:
        """Emit code that puts the mode on the real stack."""
        if self.watches:
            cg.effect(private.push_function_mode, self.mode)
        else:
            cg.statement(cg.method(self.mode, "__enter__"))


def refuse_watched(tx: Trace) -> None:
    """Modes are asked about changes of state, too, which are no operators of the graph."""
    entered = [c for c in tx.graph.contexts if isinstance(c, FunctionMode)]
    if any(mode.watches and not mode.suspended for mode in entered):
        raise Unsupported("torch-state", what="a change of state that a torch-function mode sees")


class LeftContext(ContextValue):
    """A context manager that was entered before the trace and is left in it.

    In the graph the state from before it is entered as a context of its own (``inner``), which
    ``finish`` closes; generated code then leaves the real one.
    """

    __slots__ = ("inner", "outer")

    def __init__(self, outer: ContextValue, inner: ContextValue) -> None:
        super().__init__(outer.cls)
        self.outer = outer
        self.inner = inner

    def close_in_graph(self, graph: Graph) -> None:
        self.inner.close_in_graph(graph)

    def release(self) -> None:
        self.inner.release()

    def reenter(self, cg: Emitter) -> None:
        cg.statement(cg.method(self.outer, "__exit__", NONE, NONE, NONE))


def _leave_existing(tx: Trace, context: ContextValue) -> None:
    """Leave a context manager that was entered before the trace began."""
    real = context.real
    if real is None or context.source is None:
        raise tx.interp.error(AttributeError, f"{context.describe()} was never entered")
    if isinstance(context, GradModeValue):
        previous = _read(tx, context, "prev")
        inner: ContextValue = GradModeValue(torch.set_grad_enabled, bool(previous))
    elif isinstance(context, AutocastValue) and hasattr(real, "prev"):
        enabled = bool(_read(tx, context, "prev"))
        dtype = _read(tx, context, "prev_fastdtype")
        cache = bool(_read(tx, context, "prev_cache_enabled"))
        inner = AutocastValue(torch.autocast(context.host.device, dtype, enabled, cache))  # type: ignore[arg-type]
    else:
        raise Unsupported("unsupported-slot", what=f"leaving {context.describe()} here")
    inner.enter(tx)
    tx.graph.exit_context(inner)
    tx.graph.enter_context(LeftContext(context, inner))


def _read(tx: Trace, context: ContextValue, name: str) -> object:
    """An attribute of the real context manager, guarded."""
    assert context.source is not None
    value = tx.builder.wrap(getattr(context.real, name), AttrSource(context.source, name))
    return value.as_constant()


Maker = Callable[..., ContextValue]


def _new(value: Callable[..., ContextValue], *about: object) -> Maker:
    return lambda tx, *args, **kwargs: value(*about)


def _set_grad_mode(tx: Trace, mode: Value) -> ContextValue:
    return GradModeValue(torch.set_grad_enabled, bool(mode.as_constant())).apply(tx)


def _inference_mode(tx: Trace, mode: Value = TRUE) -> ContextValue:
    return InferenceModeValue(torch.inference_mode, bool(mode.as_constant()))


def _autocast(cls: Callable[..., torch.autocast]) -> Maker:
    def make(tx: Trace, *args: Value, **kwargs: Value) -> ContextValue:
        values = [a.as_constant() for a in args]
        named = {k: v.as_constant() for k, v in kwargs.items()}
        return AutocastValue(tx.interp.hosted(cls, *values, **named))

    return make


MAKERS: dict[type, Maker] = {
    torch.no_grad: _new(GradModeValue, torch.no_grad, False),
    torch.enable_grad: _new(GradModeValue, torch.enable_grad, True),
    torch.set_grad_enabled: _set_grad_mode,
    torch.inference_mode: _inference_mode,
    torch.autocast: _autocast(torch.autocast),
    torch.cuda.amp.autocast: _autocast(torch.cuda.amp.autocast),
    private.cpu_autocast: _autocast(private.cpu_autocast),
    torch.profiler.record_function: _new(NullContextValue, torch.profiler.record_function),
    **{cls: _new(TorchFunctionDisabled, cls) for cls in private.disable_torch_function},
}


def wrap_context(obj: object, source: Source | None) -> ContextValue | None:
    """The value of an existing context manager object, or None."""
    cls = type(obj)
    context: ContextValue
    if cls is torch.no_grad or cls is torch.enable_grad:
        context = GradModeValue(cls, cls is torch.enable_grad, source)
    elif isinstance(obj, torch.set_grad_enabled):
        context = GradModeValue(cls, obj.mode, source)
    elif isinstance(obj, torch.inference_mode):
        context = InferenceModeValue(cls, obj.mode, source)
    elif isinstance(obj, torch.profiler.record_function):
        context = NullContextValue(cls, source)
    elif isinstance(obj, torch.autocast):
        device, dtype = obj.device, obj.fast_dtype
        host = torch.autocast(device, dtype, obj._enabled, obj._cache_enabled)
        context = AutocastValue(host, source)
    else:
        return None
    context.real = obj
    return context
