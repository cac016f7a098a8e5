"""``random.Random``: draws while tracing come from a copy of the generator; the compiled code sets
the generator to where the copy ended.

The numbers steer the traced program, so they are facts. Those of a generator that traced code has
seeded follow from the seed. Those of a generator found outside follow from its state: it is a
guarded fact under ``fullgraph=True``, where the alternative is an error; otherwise a draw is a
break, which leaves the numbers to eager code.
"""

from __future__ import annotations

import _random
import random
from typing import TYPE_CHECKING

from torchsmith_guards import AttrSource, CallSource, GuardKind

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.builtins.registry import builtin, method
from torchsmith_tracer._src.values.python_instances import ObjectValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.codegen.emitter import Emitter
    from torchsmith_tracer._src.trace import Trace


_SHARED: object = vars(random)["_inst"]  # behind the module's functions


class RandomState(BuiltinObject):
    """The C part of the generator ``owner``: a generator of our own in the same state.

    Attributes:
        log: what was called since ``start``, the first state; the twin follows from the two.
    """

    __slots__ = ("log", "owner", "rolled_back", "start", "twin")

    def __init__(self, owner: ObjectValue, start: tuple[int, ...]) -> None:
        super().__init__(owner.source)
        self.owner = owner
        self.start = start
        self.twin = _random.Random(0)
        self.log: list[tuple[str, list[object]]] = []
        self.rolled_back = True

    def python_type(self) -> type:
        return _random.Random

    def run(self, tx: Trace, name: str, args: list[object]) -> Value:
        """Call a method of the generator, undoably."""
        if self.rolled_back:
            self.twin.setstate(self.start)
            for earlier, known in self.log:
                getattr(self.twin, earlier)(*known)
            self.rolled_back = False
        result = tx.interp.fold(getattr(self.twin, name), *args)
        if name != "getstate":
            self.log.append((name, args))
            tx.journal.mutate(self, self._undo)
        return result

    def _undo(self) -> None:
        self.log.pop()
        self.rolled_back = True

    def reconstruct(self, cg: Emitter) -> None:
        cg.load_const(self.twin.getstate())

    def write_back(self, cg: Emitter) -> None:
        """Set the real generator's state."""
        cg.load_callable(_random.Random.setstate, "set_state")
        cg.load(self.owner)
        cg.load_const(self.twin.getstate())
        cg.call(2)
        cg.pop_top()


def _state(tx: Trace, value: Value, name: str) -> RandomState:
    """The generator's state."""
    assert isinstance(value, ObjectValue)
    if isinstance(value.storage, RandomState):
        return value.storage
    real, source = value.obj, value.source
    start = _random.Random(0).getstate()
    if name not in _SETTERS:
        if not tx.settings.fullgraph or type(real).getstate is not random.Random.getstate:  # type: ignore[attr-defined]
            raise Unsupported("opaque-call", what=f"method {name!r} of {value.describe()}")
        assert isinstance(real, random.Random) and source is not None
        why = "random numbers decide what the program does"
        step = CallSource(AttrSource(source, "getstate"))
        tx.builder.guard(step, GuardKind.CONSTANT, real.getstate(), why)
        start = _random.Random.getstate(real)
    state = RandomState(value, start)
    tx.journal.record(lambda: setattr(value, "storage", None))
    value.storage = state
    return state


_SETTERS = ("seed", "setstate")


def _register(name: str) -> None:
    def run(tx: Trace, self: Value, /, *args: Value) -> Value:
        known = [tx.interp.concrete(a) for a in args]
        if name in _SETTERS and known in ([], [None]):  # from the system's entropy
            raise Unsupported("opaque-call", what=f"{name}() of a random generator without a value")
        return _state(tx, self, name).run(tx, name, known)

    method(_random.Random, name)(run)
    if name in ("getrandbits", "random"):  # those of the module are bound methods
        shared = getattr(random, name)
        builtin(shared)(lambda tx, /, *args: run(tx, tx.builder.wrap_new(_SHARED), *args))


for _name in ("getrandbits", "random", "getstate", *_SETTERS):
    _register(_name)
