"""``CodeRecord``: the compiled versions of one code object within one region.

It owns the entries, the dispatchers made for function objects that share the code, the history for
automatic dynamic shapes, and the lock that is taken on a miss and never on a hit.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torchsmith_guards import Checker, GuardSet, collector, deferred
from torchsmith_guards.records import FrameRecord, RecompileReason, recorder

from torchsmith_tracer._src.breaks.report import FrameReport, Place, Recompile
from torchsmith_tracer._src.build.dynamic import FrameState
from torchsmith_tracer._src.codegen.resume import ResumeCode, native_code, raising_code
from torchsmith_tracer._src.codegen.source_text import compile_source, forget_source
from torchsmith_tracer._src.codegen.tail import TailCall, hide_ours
from torchsmith_tracer._src.emitter import safe_names
from torchsmith_tracer._src.frames.suspended import leads_to_generator
from torchsmith_tracer._src.marks import runs_eagerly
from torchsmith_tracer._src.records import frames
from torchsmith_tracer._src.regions import stance
from torchsmith_tracer._src.regions.ambient import watching_mode
from torchsmith_tracer._src.regions.dispatcher import (
    MISSING,
    UNBOUND,
    Form,
    Signature,
    dispatcher_source,
)
from torchsmith_tracer.errors import RecompileError, RecompileLimitError, RecompileLimitWarning

if TYPE_CHECKING:
    from torchsmith_tracer._src.regions.region import Region

Function = Callable[..., object]
_LOOKS_BACK = frozenset(("backward", "autograd", "grad"))  # names of what needs autograd history
_OF_MODULES = 4  # times as many versions as the limit, where they are of different modules
GIVE_UP = 64  # misses in a row past the limit after which entries are no longer tried


@dataclass(slots=True, eq=False)
class Entry:
    """One compiled version.

    Attributes:
        number: names ``check_N`` and ``body_N`` in the dispatcher.
        checker: generated guard check.
        body: what runs on a hit.
        report: what was captured, for ``explain``.
        edge: a size that varies is 0 or 1 here.
        symbolic: it is for several sizes.
        modules: addresses of the modules among the arguments that it was made from.
    """

    number: int
    checker: Checker
    body: Function
    report: FrameReport
    edge: bool = False
    symbolic: bool = False
    modules: tuple[int, ...] = ()


def _generality(entry: Entry) -> int:
    """The faster versions are those of one size, and then those of one length, and stand first."""
    broke = entry.report.break_
    return 2 if broke is not None and broke.name == "varying-length" else entry.symbolic


@dataclass(eq=False)
class CodeRecord:
    """See the module's docstring.

    Attributes:
        region: the owner.
        code: the user's code object, or a resume function's.
        globals: globals of its functions.
        resume: how the code was made, for resume functions.
        calls_modules: the code is what calling a module runs, as long as its class says so.
        takes_locks: whether compiled bodies run while locks are held; else these are left native.
        keeps_numbers: numbers that traced code changes are constants until the next call, since a
            whole graph needs them to be.
        keep_history: whether traces keep the autograd history of all tensors; code that names a
            backward pass is expected to need it, other code is traced again when it does.
    """

    region: Region
    code: types.CodeType
    globals: dict[str, object]
    resume: ResumeCode | None = None
    calls_modules: bool = False
    entries: list[Entry] = field(default_factory=list)
    frame_state: FrameState = field(default_factory=FrameState)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.signature = Signature.of(self.code)
        self.labels = safe_names(self.signature.names)
        self.pass_function = bool(self.code.co_freevars)
        self.takes_locks = True
        self.keeps_numbers = False
        self.keep_history = not _LOOKS_BACK.isdisjoint(self.code.co_names)
        self._dispatchers: weakref.WeakKeyDictionary[types.FunctionType, Form] = (
            weakref.WeakKeyDictionary()
        )
        self._factories: dict[Form, Callable[..., types.FunctionType]] = {}
        own = self.signature.own
        self._namespace: dict[str, object] = {
            own("miss"): self._miss,
            own("limited"): self._limited_miss,
            own("changed"): self._changed,
            own("CODE"): self.code,
            own("MISSING"): MISSING,
        }
        self._next = 0
        self._notes: set[str] = set()
        self._raising: types.CodeType | None = None
        self._native: dict[bool, types.CodeType] = {}
        self._otherwise: str | None = "miss"
        self._missed = 0  # calls that found no entry since one did, at the limit
        self._tables = threading.RLock()  # never held while compiling
        self._direct: types.FunctionType | None = None
        self._shared: types.FunctionType | None = None
        self._entered: Function | None = None

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.code.co_qualname

    @functools.cached_property
    def frame_number(self) -> int:
        """Its number among the pieces of code that this process has compiled."""
        return recorder.frame_number()

    def parameter_names(self) -> tuple[str, ...]:
        """Parameters of checkers and bodies, by the names that sources use."""
        return ("F", *self.labels) if self.pass_function else self.labels

    # --- dispatchers ---------------------------------------------------------------------------
    def dispatcher(
        self,
        fn: types.FunctionType,
        bound: object = UNBOUND,
        *,
        weak: bool = False,
        follows: str = "",
    ) -> types.FunctionType:
        """A new dispatcher for ``fn``, whose first parameter is fixed to ``bound`` if given. A
        ``weak`` one does not keep ``fn`` alive. For ``follows`` see ``Form``."""
        defaults = len(fn.__defaults__ or ())
        kind = "bound" if bound is not UNBOUND else "weak" if weak else "plain"
        form = Form(kind, defaults, frozenset(fn.__kwdefaults__ or ()), follows)
        with self._tables:
            out = self._factory(form)(weakref.ref(fn) if weak else fn, bound)
            self._dispatchers[out] = form
        kept = len(out.__defaults__ or ())  # fewer where the parameter that is fixed has one
        if follows:
            out.__defaults__ = (MISSING,) * kept or None
            out.__kwdefaults__ = dict.fromkeys(out.__kwdefaults__ or (), MISSING) or None
        else:
            out.__defaults__ = fn.__defaults__[-kept:] if fn.__defaults__ and kept else None
            out.__kwdefaults__ = fn.__kwdefaults__
        out.__name__, out.__qualname__ = fn.__name__, fn.__qualname__
        return out

    def shared(self, fn: types.FunctionType) -> types.FunctionType:
        """One plain dispatcher that all callers use; ``fn`` is the function when it is made."""
        shared = self._shared
        if shared is None or not same_defaults(shared, fn):
            with self._tables:
                shared = self._shared = self.dispatcher(fn)
        return shared

    def enter(self, cells: list[tuple[types.CellType, ...]], *args: object) -> object:
        """Call a resume function whose code has free variables, which are taken from a list."""
        direct = self._direct
        if direct is None:
            with self._tables:
                form = Form("direct", 0, frozenset())
                direct = self._direct = self._factory(form)(None, None)
                self._dispatchers[direct] = form
        return direct(self.make_function(cells.pop()), *args)

    def entry(self) -> weakref.ref[Function]:
        """What a ``TailCall`` to this resume function names; the record keeps it."""
        with self._tables:  # of two threads that compile callers, both name what is kept
            if self._entered is None:
                own = self.enter if self.pass_function else self.shared(self.make_function())
                self._entered = own
            return weakref.ref(self._entered)

    def caught(self, rest: tuple[object, ...], error: BaseException) -> TailCall:
        """What to go on with in a resume function that handles ``error``. Where that leads to a
        suspended generator, which ends when the last reference goes, no frame of ours may hold it
        and what follows has to see the end: the function runs natively, as it does when it has been
        compiled too often."""
        hide_ours(error)
        if leads_to_generator(error) or self._otherwise != "miss":
            return TailCall(lambda: self._handle, rest, ([error],))
        return TailCall(self.entry(), rest, (error,))

    def _handle(self, *args: Any) -> object:
        cells, flat = (args[0].pop(), args[1:]) if self.pass_function else (None, args)
        return self._natively(cells, caught=True)(*flat)

    def _natively(
        self, cells: tuple[types.CellType, ...] | None, *, caught: bool
    ) -> types.FunctionType:
        assert self.resume is not None
        code = self._native.get(caught)
        if code is None:
            code = self._native[caught] = native_code(self.resume, caught=caught)
        return types.FunctionType(code, self.globals, self.code.co_name, None, cells)

    def make_function(self, cells: tuple[types.CellType, ...] | None = None) -> types.FunctionType:
        """The function that ``code`` would be: what runs natively, and ``F`` of the checkers."""
        return types.FunctionType(self.code, self.globals, self.code.co_name, None, cells)

    def _factory(self, form: Form) -> Callable[..., types.FunctionType]:
        """``make(F, SELF)`` for the current entries; compiled once for each set of entries."""
        known = self._factories.get(form)
        if known is None:
            eager = stance.current() == "force_eager"
            text = dispatcher_source(
                self.signature,
                [] if eager else [e.number for e in self.entries],
                form,
                pass_function=self.pass_function,
                otherwise=None if eager else self._otherwise,
            )
            space: dict[str, object] = {}
            filename = compile_source(text, f"dispatcher {self.name}", space)
            weakref.finalize(self, forget_source, filename)
            # Only the code is wanted; functions made from it must read the shared namespace.
            code = space["make"].__code__  # type: ignore[attr-defined]
            known = self._factories[form] = types.FunctionType(code, self._namespace)
        return known

    def _install(self, entries: list[Entry], otherwise: str | None = "miss") -> None:
        """Make ``entries`` the ones that dispatchers try, and ``otherwise`` what they do then."""
        own = self.signature.own
        with self._tables:
            limited = otherwise == "limited"
            for entry in entries:
                body = self._counted(entry.body) if limited else entry.body
                self._namespace[own(f"check_{entry.number}")] = entry.checker.check
                self._namespace[own(f"body_{entry.number}")] = body
            gone = {e.number for e in self.entries} - {e.number for e in entries}
            self.entries = entries
            self._otherwise = otherwise
            self.renew_dispatchers()
            # Calls under way in other threads may still name entries that are gone.
            native = self.native_body(None) if gone else None
            for number in gone:
                self._namespace[own(f"check_{number}")] = lambda *args: False
                self._namespace[own(f"body_{number}")] = native

    def renew_dispatchers(self) -> None:
        """Give all dispatchers the code for the entries and the stance of now."""
        with self._tables:
            self._factories.clear()
            for dispatcher, form in list(self._dispatchers.items()):
                dispatcher.__code__ = self._factory(form)(None, None).__code__

    def renew_locks(self) -> None:
        """See ``Region.renew_locks``."""
        self.lock, self._tables = threading.RLock(), threading.RLock()

    def reset(self) -> None:
        """Forget all compiled versions."""
        with self.lock:
            if self.entries or self._otherwise != "miss":
                self._install([])
            self.frame_state = FrameState()

    # --- misses --------------------------------------------------------------------------------
    def _miss(self, fn: types.FunctionType, *flat: object) -> object:
        region = self.region
        if region.inactive() or self._otherwise is None:
            return self.native(fn, flat)
        mode = watching_mode()
        if mode is not None:
            self._note(f"under the active mode {mode}, which is to see each operator")
            return self.native(fn, flat)
        eager = runs_eagerly(flat, self.calls_modules)
        if eager is not None:
            self._note(eager)
            return self.native(fn, flat)
        args = (fn, *flat) if self.pass_function else flat
        failure: BaseException | None = None
        with self.lock:
            entry = self._matching(args)
            if entry is None:
                if stance.current() in ("force_eager", "eager_on_recompile"):
                    return self.native(fn, flat)
                try:
                    entry = self._compile(fn, flat, args)
                except BaseException as e:  # noqa: BLE001 - raised again, outside of our handler
                    failure = e
        if failure is not None:
            try:
                return self.raise_inside(fn, flat, failure)
            finally:
                failure = None  # its traceback leads to this frame
        if entry is None:
            return self.native(fn, flat)
        return entry.body(*args)

    def _changed(self, fn: types.FunctionType, *flat: object) -> object:
        """A call of a dispatcher whose function has other code now, or lacks a default."""
        if not isinstance(fn, types.FunctionType):  # what a class is called by now
            return self.signature.call_native(lambda obj, *a, **k: obj(*a, **k), flat)
        if fn.__code__ is self.code:
            return self.native(fn, flat)
        first = self.signature.first(flat)
        return self.signature.call_native(self.region.compiled_function(fn, first), flat)

    def _note(self, why: str) -> None:
        """Say once that the function ran eagerly, and why."""
        if why not in self._notes:
            self._notes.add(why)
            place = Place(self.code.co_filename, self.code.co_firstlineno, self.name)
            report = FrameReport(self.name, place, eager=True, note=f"runs eagerly {why}")
            self.region.log.frames.append(report)

    def _matching(self, args: tuple[object, ...]) -> Entry | None:
        return next((entry for entry in self.entries if entry.checker.check(*args)), None)

    def _compile(
        self, fn: types.FunctionType, flat: tuple[object, ...], args: tuple[object, ...]
    ) -> Entry | None:
        settings = self.region.settings
        reasons = self._note_recompile(flat, args) if self.entries else ()
        if stance.current() == "fail_on_recompile":
            why = str(self.region.log.recompiles[-1]) if self.entries else "it was never compiled"
            raise RecompileError(
                f"[{RecompileError.code}] {self.name} ({self.code.co_filename}:"
                f"{self.code.co_firstlineno}) needs another version, which the stance "
                f"fail_on_recompile refuses: {why}"
            )
        # Sizes 0 and 1 have versions of their own, which do not count until there are many; nor do
        # those of other modules: layers with a break inside share the code of what follows it.
        modules = tuple(id(each) for each in flat if issubclass(type(each), torch.nn.Module))
        alike = [e for e in self.entries if e.modules == modules]
        counted = max(sum(not e.edge for e in alike), len(alike) // 2)
        if max(counted, len(self.entries) // _OF_MODULES) >= settings.recompile_limit:
            self._at_limit()
            return None
        number = self._next
        self._next += 1
        record = frames.new_frame(self, number, flat, reasons)
        ours = getattr(self.region.backend.fn, "native_nodes", False)  # others run as ever
        paused = collector.compiling() if ours else contextlib.nullcontext()
        with deferred(), recorder.frame(record) as told, paused:
            self.frame_state.begin()
            entry, fits = self._attempt(fn, flat, args, number, told)
            if not fits:  # what was read has changed: operators import modules on first use
                shown = self.region.log.frames
                shown[:] = [each for each in shown if each is not entry.report]
                entry, fits = self._attempt(fn, flat, args, number, told)
            if not fits:
                self._repair(entry, fn, args)
            entry.body, entry.modules = frames.ranged(told, entry.body), modules
            self._install(sorted([entry, *self.entries], key=_generality))
            frames.finish(told, self, entry)
        return entry

    def _attempt(
        self, fn: types.FunctionType, flat: tuple[object, ...], args: tuple[object, ...],
        number: int, told: FrameRecord,
    ) -> tuple[Entry, bool]:  # fmt: skip
        """A version, and whether its guards hold for the arguments that it was made from."""
        entry = self.region.compile_frame(self, fn, flat, number)
        entry.edge = self.frame_state.edge
        begin = time.perf_counter()
        fits = entry.checker.check(*args)
        told.check_seconds = time.perf_counter() - begin
        return entry, fits

    def _repair(self, entry: Entry, fn: types.FunctionType, args: tuple[object, ...]) -> None:
        """The guards do not hold for the very arguments that they were made from: our bug. It
        would show as a compile at each call; so inputs like these run eagerly instead."""
        failures = entry.checker.explain(*args)
        false = {id(f.guard) for f in failures}
        kept = [g for g in entry.checker.guards if id(g) not in false]
        checker = GuardSet(kept if failures else ()).compile(
            self.parameter_names(), entry.checker.bind
        )
        if not checker.check(*args):
            checker = GuardSet().compile(self.parameter_names())
        reasons = "; ".join(map(str, failures[:3])) or "the check disagrees with its explanation"
        text = f"guards do not hold for what they were made from: {reasons}"
        entry.checker, entry.body = checker, self.native_body(fn)
        report = entry.report
        report.guards, report.eager, report.graph = checker.code, True, None
        self.region.report_bug(self.name, report, text, None)

    def _note_recompile(
        self, flat: tuple[object, ...], args: tuple[object, ...]
    ) -> list[RecompileReason]:
        latest = sorted(self.entries, key=lambda e: -e.number)
        found = [(e, f) for e in latest for f in e.checker.explain(*args, first=True)]
        version = f"{self.frame_number}/{{}}".format
        reasons = [frames.reason(f, self.code, flat, version(e.number)) for e, f in found]
        texts = [failure.told(r.line) for (_, failure), r in zip(found, reasons, strict=True)]
        note = Recompile(self.name, tuple(texts))
        self.region.log.recompiles.append(note)
        self.region.settings.emit_log("recompiles", self.name, str(note))
        return reasons

    # --- the limit -----------------------------------------------------------------------------
    def _at_limit(self) -> None:
        settings = self.region.settings
        last = self.region.log.recompiles[-1]
        text = (
            f"[TS-T904] {self.name} ({self.code.co_filename}:{self.code.co_firstlineno}) was "
            f"compiled for {len(self.entries)} kinds of inputs, the recompile_limit; "
            f"further ones run eagerly. What changed last: {last}\n"
            "  Do what the hint says, or compile with a higher limit: "
            f"options={{'recompile_limit': {4 * settings.recompile_limit}}}"
        )
        if settings.fail_on_recompile_limit:
            raise RecompileLimitError(text)
        if self._otherwise == "miss":
            self._missed = 0
            self._install(self.entries, "limited")
            warnings.warn(text, RecompileLimitWarning, stacklevel=4)

    def _limited_miss(self, fn: types.FunctionType, *flat: object) -> object:
        """A miss past the limit: nothing is explained or compiled. When no entry fits for long,
        none is tried any more, since checks that fail late cost as much as ones that pass."""
        self._missed += 1
        if self._missed >= GIVE_UP:
            with self._tables:
                if self._otherwise == "limited":
                    self._install([], None)
        return self.native(fn, flat)

    def _counted(self, body: Function) -> Function:
        def run(*args: object) -> object:
            self._missed = 0
            return body(*args)

        return run

    # --- running the user's code as it is ------------------------------------------------------
    def native_body(self, fn: types.FunctionType | None) -> Function:
        """The function itself in the form of a body; None: one without closure or defaults."""
        if self.pass_function:
            return lambda f, *flat: self.native(f, flat)
        target = self.make_function() if fn is None else fn
        return lambda *flat: self.native(target, flat)

    def native(self, fn: types.FunctionType, flat: tuple[object, ...]) -> object:
        """Run the user's code as it is."""
        if self.resume is not None and self.resume.stack:
            return self._natively(fn.__closure__, caught=False)(*flat)
        return self.signature.call_native(fn, flat)

    def raise_inside(
        self, fn: types.FunctionType, flat: Sequence[object], error: BaseException
    ) -> object:
        """Raise ``error``; for the rest of a function where that rest begins, so that contexts
        and handlers that were entered before are left."""
        try:
            if self.resume is None:
                raise error
            if self._raising is None:
                self._raising = raising_code(self.resume)
            name, cells = self.code.co_name, fn.__closure__
            return types.FunctionType(self._raising, self.globals, name, None, cells)(*flat, error)
        finally:
            del error  # its traceback leads to this frame


def same_defaults(dispatcher: types.FunctionType, fn: types.FunctionType) -> bool:
    """Whether the defaults of ``fn`` are still those that its dispatcher was made with."""
    return (
        dispatcher.__defaults__ is fn.__defaults__
        and dispatcher.__kwdefaults__ is fn.__kwdefaults__
    )
