"""``Checker``: a guard set made executable."""

from __future__ import annotations

import builtins
import hashlib
import itertools
import linecache
import types
import weakref
from collections.abc import Callable
from typing import Any

from torchsmith_guards._src.guards import codegen
from torchsmith_guards._src.guards.explain import Failure, explain
from torchsmith_guards._src.guards.guard import Guard
from torchsmith_guards._src.guards.referent import Referent, weakly
from torchsmith_guards._src.unchanged.watcher import Plan, Watcher, worth_watching

_BUILTINS = vars(builtins).copy()  # a program may replace some
# How many live checkers share a file name (equal text, different bound objects).
_USERS: dict[str, int] = {}


class Checker:
    """Decides whether compiled code may run for some arguments.

    Attributes:
        check: the generated function; takes the parameters by position, returns a bool.
        code: its source text; debuggers and tracebacks show it, too.
        guards: the guards that it checks, in the order in which they were added.
        cost_ns: rough cost of a check that succeeds, in nanoseconds.
    """

    check: Callable[..., bool]

    def __init__(
        self, guards: tuple[Guard, ...], params: tuple[str, ...], bind: dict[str, object]
    ) -> None:
        referents: dict[int, Referent] = {}
        self.guards = tuple(weakly(guard, referents) for guard in guards)
        self.params = params
        self.bind = bind
        generated = codegen.generate(self.guards, params, bind, "check")
        self.code = generated.text
        self.cost_ns = generated.cost_ns
        namespace: dict[str, Any] = dict(generated.namespace)
        full = _run(generated.text, namespace)
        self.check = full
        if worth_watching(self.guards):
            self.check = _watched(self.guards, params, bind, full)

    def explain(self, *args: object, first: bool = False) -> list[Failure]:
        """The guards that do not hold for ``args``, with old and new values; empty if all do.

        Far slower than ``check``; for messages. ``first``: no guard after the first failure is
        asked, since what is read for it may be code of a class that the failed one excludes.

        Raises:
            TypeError: the number of arguments is wrong.
        """
        if len(args) != len(self.params):
            raise TypeError(f"expected {len(self.params)} arguments, got {len(args)}")
        roots = {**self.bind, **dict(zip(self.params, args, strict=True))}
        found = (explain(guard, roots) for guard in self.guards)
        failures = (failure for failure in found if failure is not None)
        return [*itertools.islice(failures, 1)] if first else [*failures]

    def __repr__(self) -> str:
        return f"Checker({len(self.guards)} guards, about {self.cost_ns:.0f} ns)"


def _watched(
    guards: tuple[Guard, ...],
    params: tuple[str, ...],
    bind: dict[str, object],
    full: types.FunctionType,
) -> types.FunctionType:
    """A function that does what ``full`` does, and exchanges its code for a faster one once it is
    known what stays the same between calls."""
    namespace = full.__globals__

    def install(plan: Plan | None) -> None:
        if plan is None:
            check.__code__ = full.__code__
            return
        rest = tuple(guard for guard in guards if guard not in plan.covered)
        asking = codegen.Asking(plan.anchors, plan.unchanged, watcher.check)
        made = codegen.generate(rest, params, bind, "check", asking, namespace)
        namespace.update(made.namespace)
        check.__code__ = _run(made.text, namespace, check).__code__

    watcher = Watcher(guards, params, bind, full, install)
    name = "check_and_remember"
    while name in namespace:
        name += "_"
    namespace[name] = watcher.check
    names = ", ".join(f"a{n}" for n in range(len(params)))
    check: types.FunctionType = eval(f"lambda {names}: {name}({names})", namespace)
    return check


def _run(
    text: str, namespace: dict[str, Any], owner: types.FunctionType | None = None
) -> types.FunctionType:
    """The function ``check`` of ``text``, whose source debuggers find while ``owner`` (or the
    function) lives; callers may keep that and drop the checker."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    filename = f"<torchsmith_guards check {digest}>"
    namespace.setdefault("__builtins__", _BUILTINS)
    exec(compile(text, filename, "exec"), namespace)
    function: types.FunctionType = namespace.pop("check")
    _register(filename, text)
    weakref.finalize(owner or function, _unregister, filename)
    return function


def _register(filename: str, text: str) -> None:
    _USERS[filename] = _USERS.get(filename, 0) + 1
    # Without a modification time, linecache.checkcache() leaves the entry alone.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)


def _unregister(filename: str) -> None:
    _USERS[filename] -= 1
    if not _USERS[filename]:
        del _USERS[filename]
        linecache.cache.pop(filename, None)
