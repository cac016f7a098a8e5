"""``Checker``: a guard set made executable."""

from __future__ import annotations

import hashlib
import linecache
import weakref
from collections.abc import Callable
from typing import Any, cast

from torchsmith_guards._src.guards import codegen
from torchsmith_guards._src.guards.explain import Failure, explain
from torchsmith_guards._src.guards.guard import Guard

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
        self.guards = guards
        self.params = params
        self.bind = bind
        generated = codegen.generate(guards, params, bind, "check")
        self.code = generated.text
        self.cost_ns = generated.cost_ns
        digest = hashlib.sha256(self.code.encode()).hexdigest()[:12]
        filename = f"<torchsmith_guards check {digest}>"
        namespace: dict[str, Any] = dict(generated.namespace)
        exec(compile(self.code, filename, "exec"), namespace)
        self.check = cast("Callable[..., bool]", namespace["check"])
        _register(filename, self.code)
        # Callers may keep the function and drop this object.
        weakref.finalize(self.check, _unregister, filename)

    def explain(self, *args: object) -> list[Failure]:
        """The guards that do not hold for ``args``, with old and new values; empty if all do.

        Far slower than ``check``; for messages.

        Raises:
            TypeError: the number of arguments is wrong.
        """
        if len(args) != len(self.params):
            raise TypeError(f"expected {len(self.params)} arguments, got {len(args)}")
        roots = {**self.bind, **dict(zip(self.params, args, strict=True))}
        found = (explain(guard, roots) for guard in self.guards)
        return [failure for failure in found if failure is not None]

    def __repr__(self) -> str:
        return f"Checker({len(self.guards)} guards, about {self.cost_ns:.0f} ns)"


def _register(filename: str, text: str) -> None:
    _USERS[filename] = _USERS.get(filename, 0) + 1
    # Without a modification time, linecache.checkcache() leaves the entry alone.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)


def _unregister(filename: str) -> None:
    _USERS[filename] -= 1
    if not _USERS[filename]:
        del _USERS[filename]
        linecache.cache.pop(filename, None)
