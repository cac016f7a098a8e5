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

from torchsmith_guards import AttrSource, CallSource, GuardKind

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.builtins.registry import builtin, method
from torchsmith_tracer._src.values.python_instances import ObjectValue

_SHARED: object = vars(random)["_inst"]  # behind the module's functions


class RandomState(BuiltinObject):
    """The C part of the generator ``owner``: a generator of our own in the same state.

    Attributes:
        log: what was called since ``start``, the first state; the twin follows from the two.
        plain: whether the owner is known to have no attributes in place of methods.
    """

    __slots__ = ("log", "owner", "plain", "rolled_back", "start", "twin")
    cls = _random.Random

    def __init__(self, owner: ObjectValue, start: tuple[int, ...]) -> None:
        super().__init__(owner.source)
        self.owner = owner
        self.start = start
        self.twin = _random.Random(0)
        self.log: list[tuple[str, list[object]]] = []
        self.rolled_back = True
        self.plain = False

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

    def reconstruct(self, cg: Emitter) -> str:
        return cg.const(self.twin.getstate())

    def write_back(self, cg: Emitter) -> None:
        """Set the real generator's state."""
        cg.effect(_random.Random.setstate, self.owner, cg.const(self.twin.getstate()))


def _state(tx: Trace, value: Value, name: str) -> RandomState:
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
    tx.journal.assign(value, "storage", state)
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


class _Draws(random.Random):
    """A generator whose bits are those of the traced one ``of``."""

    of: tuple[Trace, RandomState]

    def getrandbits(self, k: int, /) -> int:
        return self._drawn("getrandbits", k)  # type: ignore[return-value]

    def random(self) -> float:
        return self._drawn("random")  # type: ignore[return-value]

    def _drawn(self, name: str, *args: object) -> object:
        tx, state = self.of
        return tx.interp.concrete(state.run(tx, name, list(args)))


def _run_natively(name: str) -> None:
    """Python methods over numbers are run as they are, over the bits of the traced generator: they
    are where a program that draws spends its time."""
    fn = vars(random.Random)[name]

    def run(tx: Trace, self: Value, /, *args: Value) -> Value | None:
        known = tx.interp.known(args, {})
        if known is None or not all(isinstance(a, int | float) for a in known[0]):
            return None
        if not isinstance(self, ObjectValue) or self.cls is not random.Random:
            return None  # a subclass may have its own of what is called inside
        stored = tx.journal.attrs.get(self)
        if stored is not None and not _BELOW.isdisjoint(stored):
            return None
        found = self.storage
        if not isinstance(found, RandomState) or not found.plain:
            if any(self.instance_get(tx, inner) is not None for inner in _BELOW):
                return None
            _state(tx, self, name).plain = True
        drawing = _Draws(0)
        drawing.of = tx, _state(tx, self, name)
        return tx.interp.fold(fn, drawing, *known[0])

    builtin(fn)(run)


_BELOW = frozenset(("_randbelow", "randrange", "getrandbits", "random"))  # what the others call
for _name in ("_randbelow_with_getrandbits", "randrange", "randint", "uniform"):
    _run_natively(_name)
