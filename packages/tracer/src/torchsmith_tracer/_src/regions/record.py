"""``CodeRecord``: the compiled versions of one code object within one region.

It owns the entries, the dispatchers made for function objects that share the code, the history for
automatic dynamic shapes, and the lock that is taken on a miss and never on a hit.
"""

from __future__ import annotations

import threading
import types
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchsmith_tracer._src.breaks.report import FrameReport, Recompile
from torchsmith_tracer._src.build.dynamic import FrameState
from torchsmith_tracer._src.codegen.emitter import safe_name
from torchsmith_tracer._src.codegen.resume import ResumeCode
from torchsmith_tracer._src.regions.dispatcher import (
    UNBOUND,
    Form,
    Signature,
    compile_source,
    dispatcher_source,
    forget_source,
)
from torchsmith_tracer.errors import RecompileLimitError, RecompileLimitWarning

if TYPE_CHECKING:
    from torchsmith_guards import Checker

    from torchsmith_tracer._src.regions.region import Region

Function = Callable[..., object]


@dataclass(slots=True, eq=False)
class Entry:
    """One compiled version.

    Attributes:
        number: names ``check_N`` and ``body_N`` in the dispatcher.
        checker: generated guard check.
        body: what runs on a hit.
        report: what was captured, for ``explain``.
    """

    number: int
    checker: Checker
    body: Function
    report: FrameReport


@dataclass(eq=False)
class CodeRecord:
    """See the module's docstring.

    Attributes:
        region: the owner.
        code: the user's code object, or a resume function's.
        globals: globals of its functions.
        resume: how the code was made, for resume functions.
    """

    region: Region
    code: types.CodeType
    globals: dict[str, object]
    resume: ResumeCode | None = None
    entries: list[Entry] = field(default_factory=list)
    frame_state: FrameState = field(default_factory=FrameState)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.signature = Signature.of(self.code)
        self.labels = tuple(map(safe_name, self.signature.names))
        self.pass_function = bool(self.code.co_freevars)
        self._dispatchers: weakref.WeakKeyDictionary[types.FunctionType, Form] = (
            weakref.WeakKeyDictionary()
        )
        self._factories: dict[Form, Callable[..., types.FunctionType]] = {}
        self._namespace: dict[str, object] = {"miss": self._miss}
        self._next = 0
        self._limited = False
        self._direct: types.FunctionType | None = None
        self._shared: types.FunctionType | None = None

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.code.co_qualname

    def parameter_names(self) -> tuple[str, ...]:
        """Parameters of checkers and bodies, by the names that sources use."""
        return ("F", *self.labels) if self.pass_function else self.labels

    # --- dispatchers ---------------------------------------------------------------------------
    def dispatcher(self, fn: types.FunctionType, bound: object = UNBOUND) -> types.FunctionType:
        """A new dispatcher for ``fn``, whose first parameter is fixed to ``bound`` if given."""
        defaults = len(fn.__defaults__ or ())
        kind = "plain" if bound is UNBOUND else "bound"
        form = Form(kind, defaults, frozenset(fn.__kwdefaults__ or ()))
        out = self._factory(form)(fn, bound)
        skip = 1 if kind == "bound" and self.signature.positional else 0
        kept = min(defaults, self.signature.positional - skip)
        out.__defaults__ = fn.__defaults__[-kept:] if fn.__defaults__ and kept else None
        out.__kwdefaults__ = fn.__kwdefaults__
        out.__name__, out.__qualname__ = fn.__name__, fn.__qualname__
        self._dispatchers[out] = form
        return out

    def shared(self, fn: types.FunctionType) -> types.FunctionType:
        """One plain dispatcher that all callers use; ``fn`` is the function when it is made."""
        if self._shared is None:
            with self.lock:
                self._shared = self._shared or self.dispatcher(fn)
        return self._shared

    def enter(self, cells: tuple[types.CellType, ...], *args: object) -> object:
        """Call a resume function whose code has free variables."""
        direct = self._direct
        if direct is None:
            with self.lock:
                form = Form("direct", 0, frozenset())
                direct = self._direct = self._factory(form)(None, None)
                self._dispatchers[direct] = form
        return direct(self.make_function(cells), *args)

    def entry(self) -> Function:
        """What a ``TailCall`` to this resume function names."""
        return self.enter if self.pass_function else self.shared(self.make_function())

    def make_function(self, cells: tuple[types.CellType, ...] | None = None) -> types.FunctionType:
        """The function that ``code`` would be: what runs natively, and ``F`` of the checkers."""
        return types.FunctionType(self.code, self.globals, self.code.co_name, None, cells)

    def _factory(self, form: Form) -> Callable[..., types.FunctionType]:
        """``make(F, SELF)`` for the current entries; compiled once for each set of entries."""
        known = self._factories.get(form)
        if known is None:
            text = dispatcher_source(
                self.signature,
                [e.number for e in self.entries],
                form,
                pass_function=self.pass_function,
            )
            space: dict[str, object] = {}
            filename = compile_source(text, f"dispatcher {self.name}", space)
            weakref.finalize(self, forget_source, filename)
            # Only the code is wanted; functions made from it must read the shared namespace.
            code = space["make"].__code__  # type: ignore[attr-defined]
            known = self._factories[form] = types.FunctionType(code, self._namespace)
        return known

    def _install(self, entries: list[Entry]) -> None:
        """Make ``entries`` the ones that dispatchers try."""
        for entry in entries:
            self._namespace[f"check_{entry.number}"] = entry.checker.check
            self._namespace[f"body_{entry.number}"] = entry.body
        gone = {e.number for e in self.entries} - {e.number for e in entries}
        self.entries = entries
        self._factories.clear()
        for dispatcher, form in list(self._dispatchers.items()):
            dispatcher.__code__ = self._factory(form)(None, None).__code__
        # Calls under way in other threads may still name entries that ``reset`` has removed.
        for number in gone:
            self._namespace[f"check_{number}"] = _never
            self._namespace[f"body_{number}"] = None

    def reset(self) -> None:
        """Forget all compiled versions."""
        with self.lock:
            self._install([])
            self.frame_state = FrameState()
            self._limited = False

    # --- misses --------------------------------------------------------------------------------
    def _miss(self, fn: types.FunctionType, *flat: object) -> object:
        region = self.region
        if region.inactive():
            return self.native(fn, flat)
        args = (fn, *flat) if self.pass_function else flat
        with self.lock:
            entry = self._matching(args)
            if entry is None:
                entry = self._compile(fn, flat, args)
        if entry is None:
            return self.native(fn, flat)
        return entry.body(*args)

    def _matching(self, args: tuple[object, ...]) -> Entry | None:
        for entry in self.entries:
            if entry.checker.check(*args):
                return entry
        return None

    def _compile(
        self, fn: types.FunctionType, flat: tuple[object, ...], args: tuple[object, ...]
    ) -> Entry | None:
        settings = self.region.settings
        if self.entries:
            self._note_recompile(args)
        if len(self.entries) >= settings.recompile_limit:
            self._at_limit()
            return None
        number = self._next
        self._next += 1
        entry = self.region.compile_frame(self, fn, flat, number)
        self._install([entry, *self.entries])
        return entry

    def _note_recompile(self, args: tuple[object, ...]) -> None:
        reasons = [f for e in self.entries for f in e.checker.explain(*args)[:1]]
        note = Recompile(self.name, tuple(str(r) for r in reasons))
        self.region.log.recompiles.append(note)
        self.region.settings.emit_log("recompiles", self.name, str(note))

    def _at_limit(self) -> None:
        settings = self.region.settings
        last = self.region.log.recompiles[-1] if self.region.log.recompiles else None
        text = (
            f"[TS-T904] {self.name} ({self.code.co_filename}:{self.code.co_firstlineno}) was "
            f"compiled for {len(self.entries)} kinds of inputs, the recompile_limit; "
            f"further ones run eagerly. What changed last: {last}"
        )
        if settings.fail_on_recompile_limit:
            raise RecompileLimitError(text)
        if not self._limited:
            self._limited = True
            warnings.warn(text, RecompileLimitWarning, stacklevel=4)

    def native(self, fn: types.FunctionType, flat: tuple[object, ...]) -> object:
        """Run the user's code as it is."""
        return self.signature.call_native(fn, flat)


def _never(*args: object) -> bool:
    return False
