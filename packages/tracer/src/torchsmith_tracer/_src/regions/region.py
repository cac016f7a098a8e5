"""``Region``: the owner of all code compiled for one ``compile`` call.

Everything compiled below it hangs on it: records by code object, resume functions by break point.
Nothing is global, so two regions share no limits and no state, and code dies with its owner.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torchsmith_guards import is_interruption

from torchsmith_tracer._src import marks
from torchsmith_tracer._src.breaks.report import BreakReport, FrameReport, Log
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.codegen.resume import ResumeCode, resume_code
from torchsmith_tracer._src.frames.library import is_library
from torchsmith_tracer._src.regions import stance
from torchsmith_tracer._src.regions.backends import BackendChoice
from torchsmith_tracer._src.regions.record import CodeRecord, Entry, same_defaults
from torchsmith_tracer._src.regions.warn import WARN, warn
from torchsmith_tracer._src.settings import Settings
from torchsmith_tracer.errors import InternalTracerError, TracerWarning

Function = Callable[..., object]
CompileFrame = Callable[[CodeRecord, types.FunctionType, Sequence[object], int], Entry]

_NEVER_FLAGS = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)

_BUILTINS = {  # those that our code, and torch's, cannot do without
    name: obj
    for name, obj in vars(builtins).items()
    if isinstance(obj, type | types.BuiltinFunctionType)
    and name not in ("print", "input", "open", "breakpoint", "__import__")
}

_live: weakref.WeakSet[Region]


class Region:
    """See the module's docstring.

    Attributes:
        backend: compiles the graphs.
        settings: options of this region.
        compile_frame: makes an entry of a record for a function and its arguments.
        log: what was compiled, for ``explain``.
    """

    def __init__(
        self, backend: BackendChoice, settings: Settings, compile_frame: CompileFrame
    ) -> None:
        self.backend = backend
        self.compile_frame = compile_frame
        self.settings = settings
        self.log = Log()
        self._records: dict[object, CodeRecord] = {}
        self._owners: dict[tuple[int, int], int] = {}
        self._resumes: dict[object, CodeRecord] = {}
        self._origin: dict[int, ResumeCode] = {}
        self._dispatchers: weakref.WeakKeyDictionary[
            types.FunctionType, tuple[types.CodeType, types.FunctionType]
        ] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._busy = threading.local()
        _live.add(self)
        stance.listeners.add(self)

    # --- records -------------------------------------------------------------------------------
    def record(self, fn: types.FunctionType, owner: type | None = None) -> CodeRecord:
        """The record of a function's code. Methods of modules have one for each class."""
        key = (id(fn.__code__), id(fn.__globals__), owner)
        found = self._records.get(key)
        if found is None:
            with self._lock:
                found = self._records.get(key) or self._new_record(fn, owner)
        return found

    def _new_record(self, fn: types.FunctionType, owner: type | None) -> CodeRecord:
        code, space = id(fn.__code__), id(fn.__globals__)
        if owner is not None:
            # Classes may be made for one call, too: those past the limit share a record.
            number = self._owners[code, space] = self._owners.get((code, space), 0) + 1
            if number > self.settings.recompile_limit:
                return self.record(fn)
        made = self._records[code, space, owner] = CodeRecord(self, fn.__code__, fn.__globals__)
        return made

    def resume(
        self,
        code: types.CodeType,
        space: dict[str, object],
        index: int,
        stack: str,
        local_names: Sequence[str],
    ) -> CodeRecord:
        """The record of the resume function that continues ``code`` at an instruction."""
        key = (id(code), id(space), index, stack, tuple(local_names))
        found = self._resumes.get(key)
        if found is None:
            with self._lock:
                found = self._resumes.get(key)
                if found is None:
                    made = resume_code(code, index, stack, local_names)
                    found = self._resumes[key] = CodeRecord(self, made.code, space, made)
                    self._origin[id(made.code)] = made
        return found

    def origin(self, code: types.CodeType) -> tuple[types.CodeType, int]:
        """The user's code object behind ``code`` and how many instructions precede it there."""
        made = self._origin.get(id(code))
        return (code, 0) if made is None else (made.original, made.prologue)

    def reset(self) -> None:
        """Forget all compiled code."""
        with self._lock:
            for record in [*self._records.values(), *self._resumes.values()]:
                record.reset()
            self._owners.clear()
            self.log = Log()

    def renew_dispatchers(self) -> None:
        """The stance has changed."""
        with self._lock:
            records = [*self._records.values(), *self._resumes.values()]
        for record in records:
            record.renew_dispatchers()

    def renew_locks(self) -> None:
        """New locks, in a forked process: other threads' compiles are not under way in it."""
        self._lock = threading.RLock()
        for record in [*self._records.values(), *self._resumes.values()]:
            record.renew_locks()

    # --- calls below a break -------------------------------------------------------------------
    def call(self, callee: Function, /, *args: object, **kwargs: object) -> object:
        """Call a user's callable from generated code, compiled where that is possible."""
        return self.compiled(callee)(*args, **kwargs)

    def compiled(self, callee: Function) -> Function:
        """The compiled version of ``callee``, or itself when there is nothing to compile."""
        if callee is WARN:
            return warn
        match callee:
            case types.FunctionType():
                return self.compiled_function(callee)
            case types.MethodType():
                inner = callee.__func__
                if isinstance(callee.__self__, torch.optim.Optimizer) and _is_native_step(inner):
                    return functools.partial(self._step, callee)
                if isinstance(inner, types.FunctionType):
                    return types.MethodType(
                        self.compiled_function(inner, callee.__self__), callee.__self__
                    )
                return callee
            case functools.partial():
                compiled = self.compiled(callee.func)
                if compiled is callee.func:
                    return callee
                return functools.partial(compiled, *callee.args, **callee.keywords)
            case type():
                return self._constructor(callee)
        method = getattr(type(callee), "__call__", None)  # noqa: B004 - the method is wanted
        if isinstance(method, types.FunctionType) and marks.original_of(callee) is None:
            if marks.runs_natively(callee) or marks.has_old_hooks(callee):
                return callee
            return types.MethodType(self.compiled_function(method, callee), callee)
        return callee

    def compiled_function(self, fn: types.FunctionType, owner: object = None) -> Function:
        """``compiled(fn)``; ``owner``: what the function will get as ``self``."""
        module = isinstance(owner, torch.nn.Module)
        if not module:
            code, known = self._dispatchers.get(fn, (None, None))
            if known is not None and code is fn.__code__ and same_defaults(known, fn):
                return known
        if not self.compilable(fn):
            return fn
        if module:
            # Equal layers share their compiled code: the module itself is an argument.
            return self.record(fn, type(owner)).shared(fn)
        # Functions are often made for one call: the table must not keep what they close over.
        made = self.record(fn).dispatcher(fn, weak=True)
        self._dispatchers[fn] = fn.__code__, made
        return made

    def _step(self, step: Function, closure: Function | None = None) -> object:
        """An optimizer's step, which runs natively: its closure is compiled."""
        return step() if closure is None else step(self.compiled(closure))

    def _constructor(self, cls: type) -> Function:
        """``cls(...)`` with a compiled ``__init__``, for classes made in the ordinary way."""
        init = cls.__init__  # type: ignore[misc]
        if (
            type(cls) is not type
            or getattr(cls, "__new__", None) is not object.__new__
            or not isinstance(init, types.FunctionType)
        ):
            return cls
        compiled = self.compiled_function(init)
        if compiled is init:
            return cls

        def construct(*args: object, **kwargs: object) -> object:
            new: object = object.__new__(cls)
            compiled(new, *args, **kwargs)
            return new

        return construct

    @staticmethod
    def compilable(fn: types.FunctionType) -> bool:
        """False for functions that are not the user's, are disabled, or cannot be traced."""
        code = fn.__code__
        if suspends(code) or marks.is_disabled(fn):
            return False
        if marks.original_of(fn) is not None:
            return False
        return not is_library(code)

    # --- failures of our own ---------------------------------------------------------------------
    def report_bug(
        self, name: str, report: FrameReport, what: str, error: Exception | None
    ) -> None:
        """A failure of our own: never a wrong result, never silent.

        Raises:
            InternalTracerError: under ``fullgraph=True`` or ``TORCHSMITH_STRICT=1``.
            Exception: ``error``, where it interrupts the program and is no failure.
        """
        if error is not None and is_interruption(error):
            raise error
        place = report.place
        if error is not None and error.__traceback__ is not None:
            last = traceback.extract_tb(error.__traceback__)[-1]
            what += f" ({os.path.basename(last.filename)}:{last.lineno})"
        text = (
            f"[{InternalTracerError.code}] the tracer failed on {name} "
            f"({place.file}:{place.line}): {what}"
        )
        if self.settings.fullgraph or os.environ.get("TORCHSMITH_STRICT") == "1":
            raise InternalTracerError(text) from error
        kind = Unsupported("internal-error", what=what)
        report.break_ = BreakReport.of(kind, [place], resumed=False)
        told = f"{text}. It runs eagerly for these inputs, with the right result; please report it"
        warnings.warn(told, TracerWarning, stacklevel=7)

    # --- compiling -----------------------------------------------------------------------------
    def inactive(self) -> bool:
        """True while this thread is tracing, or a builtin that our own code is written with is
        replaced: compiled functions then run natively."""
        replaced = not _BUILTINS.items() <= builtins.__dict__.items()
        return replaced or getattr(self._busy, "depth", 0) > 0

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Marks this thread as tracing."""
        self._busy.depth = getattr(self._busy, "depth", 0) + 1
        try:
            yield
        finally:
            self._busy.depth -= 1


def _is_native_step(fn: object) -> bool:
    """Whether ``fn`` is the method ``step`` of an optimizer of torch."""
    inner = inspect.unwrap(fn) if isinstance(fn, types.FunctionType) else None
    return isinstance(inner, types.FunctionType) and (
        inner.__name__ == "step" and is_library(inner.__code__)
    )


def suspends(code: types.CodeType) -> bool:
    """Whether the code is a generator's or coroutine's, which runs in pieces."""
    return bool(code.co_flags & _NEVER_FLAGS)


_live = weakref.WeakSet()


def _after_fork() -> None:
    for region in list(_live):
        region.renew_locks()


os.register_at_fork(after_in_child=_after_fork)


def reset_all() -> None:
    """Forget the compiled code of every live region."""
    for region in list(_live):
        region.reset()
