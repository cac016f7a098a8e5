"""Why a checker says no: guards evaluated one by one, slowly, with old and new values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchsmith_guards._src.guards import conditions, helpers
from torchsmith_guards._src.guards.global_state import GlobalState
from torchsmith_guards._src.guards.guard import UNCHANGED_NUMBER, Guard, GuardKind
from torchsmith_guards._src.guards.referent import Referent
from torchsmith_guards._src.guards.shape_relation import BRANCH, EQUAL, ITSELF, RANGE, ShapeRelation
from torchsmith_guards._src.guards.tensor_spec import TensorSpec
from torchsmith_guards._src.interruptions import is_interruption
from torchsmith_guards._src.sources.arrays import share_memory
from torchsmith_guards._src.sources.sources import Source

_MOST_KEYS = 16  # of a dict, that are listed
_AUTOMATIC = (
    "it becomes symbolic at the recompile; mark_dynamic(tensor, {dim}), or dynamic=True, starts "
    "that way"
)
_OF_STRIDES = "each order of dimensions in memory has its own code; call .contiguous() first"
_OF_LENGTHS = (
    "each length, and each set of keys, has its own code, with loops unrolled: keep it fixed (a "
    "tensor that is large enough and a position, or a stack), or loop under torchsmith.disable"
)
_OF_RELATIONS = {
    BRANCH: "each outcome of this comparison has its own compiled code",
    ITSELF: "each value has its own compiled code: keep it constant, make it a tensor, or do what "
    "this line does with it under torchsmith.disable",
    EQUAL: "sizes that are equal at the compile share a symbol; call with different ones first",
    RANGE: "sizes 0 and 1 always have their own compiled code",
}
# How generated code reaches what the program writes in fewer words.
_PLAINER = (
    (re.compile(r"\bG\['([^\W\d]\w*)'\]"), r"\1"),
    (re.compile(r"\.(?:__dict__|_modules|_parameters|_buffers)\['([^\W\d]\w*)'\]"), r".\1"),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """One guard that does not hold.

    Attributes:
        guard: the guard.
        old: what the compiled code was made for.
        new: what was found instead (an exception where the path is gone).
        hint: how to avoid the recompile.
        part: what of the object they are: ``size(0)``, ``dtype``; empty for itself.
    """

    guard: Guard
    old: object
    new: object
    hint: str
    part: str = ""

    @property
    def value(self) -> str:
        """What the guard asks for, as a program would write it."""
        relation = self.guard.expected
        if isinstance(relation, ShapeRelation):
            return ", ".join([_plain(source.expr) for _, source in relation.bindings])
        text = _plain(self.guard.source.expr)
        return f"{text}.{self.part}" if self.part else text

    @property
    def texts(self) -> tuple[str, str]:
        """``old`` and ``new`` as text."""
        return _shown(self.old), _shown(self.new)

    def told(self, line: str | None = None) -> str:
        """The failure as text; ``line`` is where the value is used, if the guard does not know."""
        where = f" ({line or self.guard.user_line})" if line or self.guard.user_line else ""
        old, new = self.texts
        text = f"{self.value}: expected {old}, got {new}{where}"
        why = f"\n  needed because: {self.guard.why}" if self.guard.why else ""
        return f"{text}{why}" + (f"\n  hint: {self.hint}" if self.hint else "")

    __str__ = told


def _plain(text: str) -> str:
    for pattern, plain in _PLAINER:
        text = pattern.sub(plain, text)
    return text


def _shown(obj: object) -> str:
    if isinstance(obj, torch.Tensor):  # its values may be many, and on a device that is at work
        return f"a {type(obj).__name__} of {str(obj.dtype).removeprefix('torch.')} {[*obj.shape]}"
    try:
        return str(obj)
    except Exception:  # noqa: BLE001 - the user's ``__str__`` or ``__repr__`` raises
        return object.__repr__(obj)


def _keys(keys: Iterable[object]) -> str:
    shown = [_shown(k) if isinstance(k, torch.Tensor) else repr(k) for k in keys]
    more = [f"{len(shown) - _MOST_KEYS} more"] if len(shown) > _MOST_KEYS else []
    return f"[{', '.join([*shown[:_MOST_KEYS], *more])}]"


def expectation(guard: Guard) -> str:
    """What a guard asks for, in words."""
    return _shown(_old(guard))


def explain(guard: Guard, roots: Mapping[str, object]) -> Failure | None:
    """The failure of ``guard`` for these arguments, or None when it holds."""
    try:
        return _explain(guard, roots)
    except Exception as error:  # user code may run here, as in a checker
        if is_interruption(error):
            raise
        return Failure(guard, _old(guard), error, "the object is not where it was")


def _explain(guard: Guard, roots: Mapping[str, object]) -> Failure | None:
    if guard.kind is GuardKind.GLOBAL_STATE:
        return _global_state(guard)
    if guard.kind is GuardKind.SHAPE:
        return _shape(guard, roots)
    value = helpers.fetch(guard.source, roots)
    if isinstance(guard.expected, TensorSpec):
        return _tensor(guard, guard.expected, value)
    if guard.kind is GuardKind.SAME_OBJECT:
        assert isinstance(guard.expected, Source), "checked by Guard"
        other = helpers.fetch(guard.expected, roots)
        text = f"the same object as {guard.expected.expr}"
        hint = "two inputs were one object at the first call; pass them alike"
        return None if value is other else Failure(guard, text, "another object", hint)
    if guard.kind is GuardKind.NOT_SAME:
        return _distinct(guard, value, roots)
    if guard.kind is GuardKind.DISJOINT:
        return _disjoint(guard, value, roots)
    if _holds(guard, value):
        return None
    return Failure(guard, _old(guard), _new(guard, value), _hint(guard, value))


def _holds(guard: Guard, value: object) -> bool:
    """What the checker asks of one object."""
    names = conditions.Names({"value": value})
    condition = conditions.condition(names, "value", guard)
    return not eval(condition, {**names.namespace, "value": value})


def _old(guard: Guard) -> object:
    expected: Any = guard.expected
    match guard.kind:
        case GuardKind.LENGTH:
            return f"{expected[0].__name__} of {expected[1]}"
        case GuardKind.DICT_KEYS:
            return f"{expected[0].__name__} with keys {_keys(expected[1])}"
        case GuardKind.DICT_CONTAINS:
            return f"key {expected[0]!r} {'present' if expected[1] else 'absent'}"
        case GuardKind.HASATTR:
            return f"attribute {expected[0]!r} {'present' if expected[1] else 'absent'}"
        case GuardKind.TYPE:
            return f"type {expected.__name__}"
        case GuardKind.EMPTY:
            return "empty"
        case GuardKind.WRITABLE:
            return "a tensor that may be written to"
        case GuardKind.ID if isinstance(expected, Referent):
            return expected.shown()
        case _:
            return expected


def _new(guard: Guard, value: Any) -> object:
    expected: Any = guard.expected
    match guard.kind:
        case GuardKind.LENGTH | GuardKind.DICT_KEYS if type(value) is not expected[0]:
            return f"type {type(value).__name__}"  # what it is listed by may never end
        case GuardKind.LENGTH:
            return f"{type(value).__name__} of {len(value)}"
        case GuardKind.DICT_KEYS:
            return f"{type(value).__name__} with keys {_keys(value)}"
        case GuardKind.DICT_CONTAINS | GuardKind.HASATTR:
            assert isinstance(guard.expected, tuple), "checked by Guard"
            return "absent" if guard.expected[1] else "present"
        case GuardKind.TYPE:
            return f"type {type(value).__name__}"
        case GuardKind.CODE:
            return value.__code__
        case GuardKind.WRITABLE:
            return "an inference tensor"
        case _:
            return value


def _hint(guard: Guard, value: object) -> str:
    match guard.kind:
        case GuardKind.CONSTANT if guard.why == UNCHANGED_NUMBER and type(value) in (int, float):
            return "a number that changes becomes symbolic at the recompile"
        case GuardKind.CONSTANT:
            return "each distinct constant has its own compiled code; pass few of them"
        case GuardKind.TYPE:
            return "pass the same type on every call"
        case GuardKind.ID | GuardKind.CODE:
            return "the object was replaced; create functions, classes and modules once"
        case GuardKind.LENGTH | GuardKind.DICT_KEYS:
            return _OF_LENGTHS
        case _:
            return ""


def _tensor(guard: Guard, spec: TensorSpec, value: Any) -> Failure | None:
    if not isinstance(value, torch.Tensor):
        old = f"a {spec.type.__name__}"
        new = "None" if value is None else f"type {type(value).__name__}"
        return Failure(guard, old, new, "pass a tensor on every call")
    with torch._C.DisableTorchFunctionSubclass():  # no code of the program's is run
        found = TensorSpec.of(value)
    for name, hint in (
        ("type", "pass the same tensor class on every call"),
        ("dtype", "convert once, outside of the compiled function"),
        ("device", "each device has its own compiled code"),
        ("requires_grad", "call under the same grad setting, or detach"),
        ("layout", "pass tensors of one layout"),
        ("conj", "call .resolve_conj() first"),
        ("neg", "call .resolve_neg() first"),
    ):
        old, new = getattr(spec, name), getattr(found, name)
        if old != new:
            return Failure(guard, old, new, hint, name)
    if len(spec.size) != len(found.size):
        hint = "each number of dimensions has its own compiled code"
        return Failure(guard, f"{len(spec.size)} dims", f"{len(found.size)} dims", hint)
    for name, olds, news in (
        ("size", spec.size, found.size),
        ("stride", spec.stride or (), found.stride or ()),
    ):
        for dim, (was, now) in enumerate(zip(olds, news, strict=True)):
            if was is not None and was != now:
                hint = _AUTOMATIC.format(dim=dim) if name == "size" else _OF_STRIDES
                if name == "size" and {was, now} & {0, 1}:
                    hint = _OF_RELATIONS[RANGE]
                return Failure(guard, was, now, hint, f"{name}({dim})")
    return None


def _global_state(guard: Guard) -> Failure | None:
    assert isinstance(guard.expected, GlobalState), "checked by Guard"
    now = GlobalState.capture()
    different = guard.expected.differences(now)
    if not different:
        return None
    old = ", ".join(f"{name}={a}" for name, a, _ in different)
    new = ", ".join(f"{name}={b}" for name, _, b in different)
    return Failure(guard, old, new, "call under the same grad, autocast and default settings")


def _distinct(guard: Guard, value: object, roots: Mapping[str, object]) -> Failure | None:
    assert isinstance(guard.expected, tuple), "checked by Guard"
    seen = {id(value): guard.source.expr}
    for source in guard.expected:
        other = helpers.fetch(source, roots)
        if id(other) in seen:
            old = f"{source.expr} and {seen[id(other)]} distinct"
            return Failure(guard, old, "one object", "do not pass one tensor twice")
        seen[id(other)] = source.expr
    return None


def _disjoint(guard: Guard, value: Any, roots: Mapping[str, object]) -> Failure | None:
    assert isinstance(guard.expected, tuple), "checked by Guard"
    for source in guard.expected:
        if share_memory(value, helpers.fetch(source, roots)):
            old = f"{guard.source.expr} and {source.expr} in memory of their own"
            return Failure(guard, old, "shared memory", "copy what is changed in place")
    return None


def _shape(guard: Guard, roots: Mapping[str, object]) -> Failure | None:
    assert isinstance(guard.expected, ShapeRelation), "checked by Guard"
    values = {name: helpers.fetch(s, roots) for name, s in guard.expected.bindings}
    if guard.expected.condition.evaluate(values):
        return None
    hint, number = _OF_RELATIONS.get(guard.why, ""), guard.expected.constant()
    if number is not None:
        return Failure(guard, number.value, next(iter(values.values())), hint)
    new = ", ".join(f"{_plain(s.expr)} = {values[name]}" for name, s in guard.expected.bindings)
    return Failure(guard, _plain(guard.expected.text()), new, hint)
