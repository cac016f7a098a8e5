"""``ObjectLayer``: what values ask of the interpreter, under one name, ``tx.interp``."""

from __future__ import annotations

import builtins
from collections.abc import Callable

from torchsmith_tracer._src.trace import Trace
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
from torchsmith_tracer._src.values.iterators import (
    DictIterator,
    GetitemIterator,
    ItemsIterator,
    RangeIterator,
    SequenceIterator,
)


class ObjectLayer:
    """The parts, the names of theirs that others call, and what they share.

    Attributes:
        handled: the exception that ``sys.exc_info()`` gives.
        class_cache, class_attr_values, builtin_names: what lookups found, until a rollback.
        patched_classes: those that traced code stores to.
        weak_references: those without a callback, by referent.
        watched: objects that traced code has made and refers to weakly.
    """

    UNKNOWN = Basics.UNKNOWN
    none: Value = NONE
    is_none = staticmethod(is_none)

    def __init__(self, tx: Trace) -> None:
        self.handled: Value | None = None  # by the traced program
        self.keys = 0  # hashes of keys that are being computed, which nobody sees
        self.builtins: dict[str, object] = vars(builtins)
        self.builtin_names: dict[str, Value] = {}
        self.class_cache: dict[tuple[type, str], object] = {}
        self.class_attr_values: dict[tuple[type, str], Value] = {}
        self.patched_classes: dict[type, ClassValue] = {}
        self.weak_references: dict[Value, Value] = {}
        self.watched: set[Value] = set()
        basics, operators, iteration = Basics(tx, self), Operators(tx, self), Iteration(tx, self)
        texts, attributes = Texts(tx, self), Attributes(tx, self)
        imports, calls = Imports(tx, self), Calls(tx, self)
        self.parts = (basics, operators, iteration, texts, attributes, imports, calls)

        self.const = basics.const
        self.code_const = basics.code_const
        self.tuple = TupleValue
        self.dict = basics.dict
        self.dict_of = basics.dict_of
        self.namespace = basics.namespace
        self.cell = basics.cell
        self.class_value = basics.class_value
        self.try_concrete = basics.try_concrete
        self.keywords = basics.keywords
        self.known = basics.known
        self.concrete = basics.concrete
        self.fold, self.hosted = basics.fold, basics.hosted
        self.being_handled = basics.being_handled
        self.error = basics.error
        self.error_with = basics.error_with
        self.host_error = basics.host_error
        self.is_same = basics.is_same
        self.identity_key = basics.identity_key
        self.user_key = basics.user_key
        self.hash_key = basics.hash_key
        self.truth = basics.truth
        self.keeps_truth = basics.keeps_truth
        self.negate = basics.negate
        self.namespaces = basics.namespaces

        self.binary = operators.binary
        self.inplace = operators.inplace
        self.compare = operators.compare
        self.equal = operators.equal
        self.hash_of = operators.hash_of
        self.shown_hash = operators.shown_hash
        self.operand_error = operators.operand_error
        self.try_index = operators.try_index
        self.index = operators.index
        self.check_length = operators.check_length
        self.check_bool = operators.check_bool
        self.exception_matches = operators.exception_matches

        self.contains_by_iteration = iteration.contains_by_iteration
        self.namespace_get = iteration.namespace_get
        self.iterator = ItemsIterator
        self.sequence_iterator = SequenceIterator
        self.range_iterator = RangeIterator
        self.dict_iterator = DictIterator
        self.getitem_iterator = GetitemIterator
        self.item_or_end = iteration.item_or_end
        self.check_iterator = iteration.check_iterator
        self.step = iteration.step
        self.unpack = iteration.unpack
        self.unpack_for = iteration.unpack_for
        self.is_iterable = iteration.is_iterable
        self.unpack_exactly = iteration.unpack_exactly
        self.is_mapping = iteration.is_mapping
        self.dict_update = iteration.dict_update
        self.merge_keywords = iteration.merge_keywords

        self.convert = texts.convert
        self.str_of = texts.str_of
        self.repr_of = texts.repr_of
        self.format = texts.format
        self.default_text: Callable[[Value, str], Value] = texts.default_text
        self.percent = texts.percent
        self.function_text = texts.function_text

        self.special_method = attributes.special_method
        self.call_special = attributes.call_special
        self.type_of = attributes.type_of
        self.builtin_method = BuiltinMethodValue
        self.bind_attribute = attributes.bind_attribute
        self.c_attribute = attributes.c_attribute
        self.c_descriptor = attributes.c_descriptor
        self.bind_descriptor = attributes.bind_descriptor
        self.descriptor_set = attributes.descriptor_set
        self.descriptor_delete = attributes.descriptor_delete
        self.instance_dict = attributes.instance_dict
        self.class_dict = attributes.class_dict
        self.patch_class = attributes.patch_class
        self.super = attributes.super

        self.import_module = imports.import_module
        self.import_from = imports.import_from

        self.call = calls.call
        self.call_from = calls.call_from
        self.call_python = calls.call_python
        self.call_class = calls.call_class
        self.instantiate = calls.instantiate
        self.call_builtin = calls.call_builtin
        self.call_builtin_method = calls.call_builtin_method

    def forget(self) -> None:
        """Guards were rolled back: what was looked up must be looked up again."""
        self.builtin_names.clear()
        self.class_cache.clear()
        self.class_attr_values.clear()
