"""``LazyValue``: an element of an existing container, or a local of a piece of a broken function,
that nothing has looked at yet.

It costs neither a guard nor a graph input. It is realised when it is read; when it is only moved
around, generated code loads it by its source.
"""

from __future__ import annotations

from torchsmith_guards import Source

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import RealObject, Value


class LazyValue(RealObject):
    """``obj`` as found at ``source``; never on a frame's stack."""

    __slots__ = ("tx",)
    source: Source

    def __init__(self, obj: object, source: Source, tx: Trace) -> None:
        super().__init__(obj, source)
        self.tx = tx

    def as_constant(self) -> object:
        return realize(self.tx, self).as_constant()  # with the guards of a read

    def as_proxy(self) -> object:
        return realize(self.tx, self).as_proxy()


def realize(tx: Trace, value: Value) -> Value:
    """The value itself; a lazy one is wrapped now, with its guards."""
    return tx.builder.wrap(value.obj, value.source) if type(value) is LazyValue else value
