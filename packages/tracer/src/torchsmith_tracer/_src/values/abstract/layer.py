"""``ObjectLayer``: what values ask of the interpreter, under one name, ``tx.interp``."""

from __future__ import annotations

import builtins

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values import iterators
from torchsmith_tracer._src.values.abstract.attributes import Attributes
from torchsmith_tracer._src.values.abstract.basics import Basics
from torchsmith_tracer._src.values.abstract.calls import Calls
from torchsmith_tracer._src.values.abstract.imports import Imports
from torchsmith_tracer._src.values.abstract.iteration import Iteration
from torchsmith_tracer._src.values.abstract.operators import Operators
from torchsmith_tracer._src.values.abstract.text import Texts
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import NONE, is_none
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.functions import BuiltinMethodValue


class ObjectLayer(Basics, Operators, Iteration, Texts, Attributes, Imports, Calls):
    """The parts, and what they share.

    Attributes:
        handled: the exception that ``sys.exc_info()`` gives.
        class_cache, class_attr_values, builtin_names: what lookups found, until a rollback.
        patched_classes: those that traced code stores to.
        weak_references: those without a callback, by referent.
        watched: objects that traced code has made and refers to weakly.
    """

    none: Value = NONE
    is_none = staticmethod(is_none)
    tuple = TupleValue
    iterator = iterators.ItemsIterator
    sequence_iterator = iterators.SequenceIterator
    range_iterator = iterators.RangeIterator
    dict_iterator = iterators.DictIterator
    getitem_iterator = iterators.GetitemIterator
    builtin_method = BuiltinMethodValue

    def __init__(self, tx: Trace) -> None:
        super().__init__(tx)
        self.handled: Value | None = None  # by the traced program
        self.keys = 0  # hashes of keys that are being computed, which nobody sees
        self.builtins: dict[str, object] = vars(builtins)
        self.builtin_names: dict[str, Value] = {}
        self.class_cache: dict[tuple[type, str], object] = {}
        self.class_attr_values: dict[tuple[type, str], Value] = {}
        self.patched_classes: dict[type, ClassValue] = {}
        self.weak_references: dict[Value, Value] = {}
        self.watched: set[Value] = set()

    def forget(self) -> None:
        """Guards were rolled back: what was looked up must be looked up again."""
        self.builtin_names.clear()
        self.class_cache.clear()
        self.class_attr_values.clear()
