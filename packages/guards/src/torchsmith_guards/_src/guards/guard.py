"""``Guard``: one fact about one source that the compiled code relies on. Data, no behaviour."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from types import CodeType

import torch

from torchsmith_guards._src.guards.global_state import GlobalState
from torchsmith_guards._src.guards.shape_relation import ShapeRelation
from torchsmith_guards._src.guards.tensor_spec import TensorSpec
from torchsmith_guards._src.sources.sources import Source, is_literal, is_short
from torchsmith_guards.errors import GuardError


class GuardKind(enum.Enum):
    """What a guard compares, and what ``Guard.expected`` must be for it."""

    TYPE = "type"  # type(x) is expected; expected: a class
    ID = "id"  # x is expected; expected: the object
    CONSTANT = "constant"  # same type, equal (NaN-aware, -0.0 is not 0.0); expected: the value
    LENGTH = "length"  # expected: (exact type, len)
    DICT_KEYS = "dict keys"  # expected: (exact type, tuple of keys in order)
    DICT_CONTAINS = "dict contains"  # expected: (key, whether present)
    HASATTR = "hasattr"  # expected: (name, whether present)
    TENSOR = "tensor"  # expected: TensorSpec
    NONE = "none"  # expected: None
    CODE = "code"  # x.__code__ is expected; expected: a code object
    SAME_OBJECT = "same object"  # expected: the other Source
    NOT_SAME = "not same"  # expected: tuple of Sources; with `source`, pairwise distinct objects
    DISJOINT = "disjoint"  # expected: tuple of Sources, in no memory of `source`'s
    GLOBAL_STATE = "global state"  # expected: GlobalState; source: GLOBAL_STATE
    EMPTY = "empty"  # falsy container; expected: None
    WRITABLE = "writable"  # no inference tensor; expected: None
    SHAPE = "shape"  # expected: ShapeRelation; source: SHAPES

    # Members are single objects; hashing them by name is a call of Python's for every lookup.
    __hash__ = object.__hash__

    @property
    def relational(self) -> bool:
        """True when the check reads more than its own source; such checks run last."""
        return self in _RELATIONAL


#: ``Guard.why`` of a number that is a constant only until it is seen to change.
UNCHANGED_NUMBER = "a number is a constant until it is seen to change"

# Constants that print as what they are, like literals.
_BY_VALUE = (torch.device, torch.Size)
_OTHERS = (GuardKind.NOT_SAME, GuardKind.DISJOINT)
_RELATIONAL = {GuardKind.SAME_OBJECT, GuardKind.SHAPE, *_OTHERS}


def _is_pair(value: object, first: type) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], first)


def _valid(kind: GuardKind, expected: object) -> bool:
    match kind:
        case GuardKind.TYPE:
            return isinstance(expected, type)
        case GuardKind.LENGTH:
            return _is_pair(expected, type) and isinstance(expected[1], int)  # type: ignore[index]
        case GuardKind.DICT_KEYS:
            return _is_pair(expected, type) and isinstance(expected[1], tuple)  # type: ignore[index]
        case GuardKind.DICT_CONTAINS:
            return _is_pair(expected, object) and isinstance(expected[1], bool)  # type: ignore[index]
        case GuardKind.HASATTR:
            return _is_pair(expected, str) and isinstance(expected[1], bool)  # type: ignore[index]
        case GuardKind.TENSOR:
            return isinstance(expected, TensorSpec)
        case GuardKind.CODE:
            return isinstance(expected, CodeType)
        case GuardKind.SAME_OBJECT:
            return isinstance(expected, Source)
        case GuardKind.NOT_SAME | GuardKind.DISJOINT:
            return isinstance(expected, tuple) and all(isinstance(s, Source) for s in expected)
        case GuardKind.GLOBAL_STATE:
            return isinstance(expected, GlobalState)
        case GuardKind.SHAPE:
            return isinstance(expected, ShapeRelation)
        case _:
            return True


@dataclass(frozen=True, slots=True)
class Guard:
    """One fact.

    Attributes:
        source: what is looked at.
        kind: how; see ``GuardKind`` for the form of ``expected``.
        expected: what must hold.
        why: reason in the user's terms ("argument of type int is specialised").
        user_line: ``file:line`` of the user's code that needed the fact, when known.

    Raises:
        GuardError: ``expected`` does not fit ``kind``.
    """

    source: Source
    kind: GuardKind
    expected: object = None
    why: str = ""
    user_line: str | None = None

    def __post_init__(self) -> None:
        if not _valid(self.kind, self.expected):
            raise GuardError(kind=self.kind.name, source=self.source.expr, expected=self.expected)

    def sources(self) -> tuple[Source, ...]:
        """All sources that the check reads."""
        match self.expected:
            case Source() as other:
                return (self.source, other)
            case ShapeRelation() as relation:
                return tuple(source for _, source in relation.bindings)
            case tuple() as others if self.kind in _OTHERS:
                return (self.source, *others)
            case _:
                return (self.source,)

    def fact(self) -> Hashable:
        """What is claimed, whatever it is claimed of: equal facts are checked by equal code."""
        expected = self.expected
        match self.kind:
            case GuardKind.ID | GuardKind.TYPE | GuardKind.CODE:
                return (self.kind, id(expected))
            case GuardKind.CONSTANT if type(expected) in _BY_VALUE or (
                is_literal(expected) and is_short(expected)
            ):
                return (self.kind, type(expected), repr(expected))
            case GuardKind.CONSTANT:
                return (self.kind, id(expected))
            case GuardKind.DICT_KEYS | GuardKind.DICT_CONTAINS:
                return (self.kind, _identity_key(expected))
            case _:
                return (self.kind, expected)

    def key(self) -> Hashable:
        """Equal keys mean the same check: guard sets keep one of them."""
        return (self.source, self.fact())

    def __hash__(self) -> int:
        return hash(self.key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guard) and self.key() == other.key()


def _identity_key(value: object) -> Hashable:
    if isinstance(value, tuple):
        return tuple([_identity_key(v) for v in value])
    return (type(value), value) if isinstance(value, (str, int, bool)) else id(value)
