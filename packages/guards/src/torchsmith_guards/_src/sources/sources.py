"""``Source``: where an object of the traced program was found, and how to find it again.

A source is a path. Its root is a parameter (``LocalSource``), the entry function, the globals of a
module, or an object that is the same at every call; every further step (attribute, item, ...) wraps
the step before as ``base``. Sources are immutable and hash in constant time, so they serve as keys.

``expr`` prints a source as Python over these roots:

* parameter names themselves,
* ``F``: the entry function object,
* ``G``: the globals of the entry function,
* ``M``: a mapping from module name to that module's namespace dict,

A step is defined once: ``code`` writes it as an expression over its base. The checker, the body of
compiled code, slow evaluation (``take``) and the text that a person reads are made from it.
"""

from __future__ import annotations

import builtins
import enum
import keyword
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

TensorProperty = Literal["size", "stride", "storage_offset"]

Name = Callable[[object, str], str]
"""Gives the name by which generated code reaches an object, or what is found at a source; the text
is a hint for the name."""

_SCALARS = frozenset((int, str, bytes, bool, type(None), type(Ellipsis)))


def is_literal(value: object) -> bool:
    """True for constants that print as Python literals and read back the same."""
    if type(value) is tuple:
        return all(map(is_literal, value))
    if type(value) is float or type(value) is complex:
        return value == value and "inf" not in repr(value) and "nan" not in repr(value)
    return type(value) in _SCALARS


def is_short(value: object) -> bool:
    """True for literals that are worth printing: Python refuses to print ints of thousands of
    digits, compiling a text with long strings costs time, and -(0+2j) reads as another number."""
    match value:
        case complex():
            return False
        case int():
            return -_LONGEST_INT < value < _LONGEST_INT
        case str() | bytes():
            return len(value) <= _LONGEST
        case tuple():
            return len(value) <= _LONGEST and all(map(is_short, value))
    return True


_LONGEST = 2000
_LONGEST_INT = 1 << 4096


def _key_text(key: object) -> str:
    if isinstance(key, Source):
        return key.expr
    if type(key) is float and key in (float("inf"), float("-inf")):
        return f"float({str(key)!r})"
    if is_literal(key) and is_short(key):
        return repr(key)
    if isinstance(key, enum.Enum):
        return f"<{type(key).__name__}.{key.name}>"
    return own_name(key) or f"<{type(key).__name__}>"


_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)


def own_name(obj: object, attr: str = "__name__") -> str:
    """What a class, function or module is called; nothing for others, which may compute their
    attributes: no code of the user's is run for a text."""
    if issubclass(type(obj), types.ModuleType):  # whose ``__getattr__`` is the user's
        name = object.__getattribute__(obj, "__dict__").get(attr)
    else:
        name = getattr(obj, attr, "") if issubclass(type(obj), _NAMED) else ""
    return name if isinstance(name, str) else ""


def _object_text(obj: object) -> str:
    name = own_name(obj, "__qualname__") or own_name(obj)
    if not name:
        return f"<{type(obj).__name__} object>"
    module = getattr(obj, "__module__", None)
    return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else str(name)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Base of all sources.

    Attributes:
        base: the source that this one takes a step from; None for roots.
    """

    _expr: str | None = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_expr", None)
        object.__setattr__(self, "_hash", hash((type(self), self._key())))

    @property
    def expr(self) -> str:
        """Python expression text over the roots (see the module's docstring); most sources are
        never printed."""
        text = self._expr
        if text is None:
            text = self._text()
            object.__setattr__(self, "_expr", text)
        return text

    if TYPE_CHECKING:
        # Only for the type checker: at run time steps have a field and roots a property, and a
        # property here would become the default of the steps' field.
        @property
        def base(self) -> Source | None: ...

    @property
    def root(self) -> Source:
        """The source at the start of the path (itself for roots)."""
        here: Source = self
        while (base := here.base) is not None:
            here = base
        return here

    def step_key(self) -> Hashable:
        """What tells this step from other steps at the same base."""
        key = self._key()
        if self.base is None:
            return (type(self), key)
        return (type(self), key[1:] if isinstance(key, tuple) else ())

    def _key(self) -> Hashable:
        """The fields; a class whose fields are not all compared by value has its own."""
        names: tuple[str, ...] = self.__match_args__
        return tuple([getattr(self, name) for name in names])

    def _text(self) -> str:
        raise NotImplementedError(type(self).__name__)  # every concrete class defines it

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return False
        assert isinstance(other, Source)
        return self._hash == other._hash and self._key() == other._key()

    def __str__(self) -> str:
        return self.expr


# --- roots ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Root(Source):
    @property
    def base(self) -> None:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class LocalSource(_Root):
    """A parameter of the compiled function (and of its checker)."""

    name: str

    def _text(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class NamespaceSource(_Root):
    """A whole namespace dict: of the entry function (``module`` None) or of a named module."""

    module: str | None = None

    def _text(self) -> str:
        return "G" if self.module is None else f"M[{self.module!r}]"


@dataclass(frozen=True, slots=True, eq=False)
class FunctionSource(_Root):
    """The entry function object itself, ``F``."""

    def _text(self) -> str:
        return "F"


@dataclass(frozen=True, slots=True, eq=False)
class PinnedSource(_Root):
    """An object that is the same at every call: a constant of the code, or one whose identity
    other guards fix. What it holds can still change, so the steps from it are guarded."""

    obj: object

    def _key(self) -> Hashable:
        return id(self.obj)

    def _text(self) -> str:
        return _object_text(self.obj)


@dataclass(frozen=True, slots=True, eq=False)
class ClassDictSource(_Root):
    """``vars(cls)`` of a class that is the same at every call."""

    cls: type

    def _key(self) -> Hashable:
        return id(self.cls)

    def _text(self) -> str:
        return f"vars({_object_text(self.cls)})"


# ``vars(cls)`` and ``cls.__mro__``, whatever a metaclass makes of these names.
class_dict: Callable[[type], Mapping[str, object]] = type.__dict__["__dict__"].__get__
_MRO = type.__dict__["__mro__"].__get__


def class_mro(cls: type) -> tuple[type, ...]:
    """The order in which attributes of ``cls`` are looked up; its metaclass is not asked."""
    order: tuple[type, ...] = _MRO(cls)
    return order


@dataclass(frozen=True, slots=True, eq=False)
class AnchorSource(_Root):
    """Anchor of guards on no object: torch's ambient state, or relations between sizes."""

    text: str

    def _text(self) -> str:
        return self.text


# --- steps ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Step(Source):
    """One step from ``base``."""

    base: Source

    def code(self, base: str, name: Name) -> str:
        """The step as a Python expression.

        Args:
            base: expression of the object that the step is taken from; written once.
            name: for objects that have no literal.
        """
        raise NotImplementedError(type(self).__name__)  # every concrete class defines it

    def take(self, base: object) -> Any:
        """The object that the step leads to; slow.

        Raises:
            Exception: whatever the step raises when there is nothing.
        """
        space: dict[str, object] = {"base": base}

        def name(obj: object, hint: str) -> str:
            space[text := f"object_{len(space)}"] = obj
            return text

        return eval(self.code("base", name), space)

    def _text(self) -> str:
        return self.code(self.base.expr, lambda obj, hint: _key_text(obj))


def _constant(value: object, name: Name, hint: str) -> str:
    return repr(value) if is_literal(value) and is_short(value) else name(value, hint)


def _named(fn: Callable[..., object], name: Name) -> str:
    """A class or function, which generated text may call a builtin by its name."""
    known = getattr(builtins, fn.__name__, None) is fn
    return fn.__name__ if known else name(fn, fn.__name__)


@dataclass(frozen=True, slots=True, eq=False)
class AttrSource(Step):
    """``base.attr``, by ordinary attribute access."""

    attr: str

    def _key(self) -> Hashable:
        return (self.base, self.attr)

    def code(self, base: str, name: Name) -> str:
        if self.attr.isidentifier() and not keyword.iskeyword(self.attr):
            return f"{base}.{self.attr}"
        return f"getattr({base}, {self.attr!r})"


def dict_entry(table: dict[object, object], key: object) -> object:
    """``table[key]`` that makes no missing entry, as ``defaultdict`` does.

    Raises:
        KeyError: it is missing.
    """
    if dict.__contains__(table, key):
        return dict.__getitem__(table, key)
    raise KeyError(key)


@dataclass(frozen=True, slots=True, eq=False)
class ItemSource(Step):
    """``base[key]``; ``key`` is any hashable constant object.

    Attributes:
        of: the builtin class whose ``__getitem__`` is meant, where the object's own class has
            another one.
    """

    key: object
    of: type | None = None

    def _key(self) -> Hashable:
        return (self.base, type(self.key), self.key, self.of)

    def code(self, base: str, name: Name) -> str:
        key = _constant(self.key, name, "key")
        if self.of is None:
            return f"{base}[{key}]"
        if self.of is dict:
            return f"{name(dict_entry, 'dict_entry')}({base}, {key})"
        return f"{_named(self.of, name)}.__getitem__({base}, {key})"


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSource(Step):
    """``base[index + offset]``, where ``index`` is itself found at a source."""

    index: Source
    offset: int = 0

    def code(self, base: str, name: Name) -> str:
        index = name(self.index, "index")
        return f"{base}[{index} + {self.offset}]" if self.offset else f"{base}[{index}]"

    def take(self, base: object) -> Any:
        raise TypeError("the index is found elsewhere")  # see ``fetch``


@dataclass(frozen=True, slots=True, eq=False)
class ContentSource(Step):
    """A tuple of what a container holds, in its order: of its keys, of its values, or of what its
    ``__iter__`` gives, by the method of the builtin class ``of``."""

    part: Literal["keys", "values", "__iter__"]
    of: type

    def code(self, base: str, name: Name) -> str:
        return f"tuple({_named(self.of, name)}.{self.part}({base}))"


@dataclass(frozen=True, slots=True, eq=False)
class CallSource(Step):
    """``base(*args)``: the referent of a weak reference, or a query of the process's state, which
    is asked again at each check. The arguments are constants."""

    args: tuple[object, ...] = ()

    def _key(self) -> Hashable:
        return (self.base, *((type(a), a if is_literal(a) else id(a)) for a in self.args))

    def code(self, base: str, name: Name) -> str:
        return f"{base}({', '.join(_constant(a, name, 'argument') for a in self.args)})"


@dataclass(frozen=True, slots=True, eq=False)
class ResultSource(Step):
    """``fn(base)``: what a function without effects makes of an object, its ``id`` for example, or
    the tensor below an instance of a subclass."""

    fn: Callable[[Any], object]

    def code(self, base: str, name: Name) -> str:
        return f"{_named(self.fn, name)}({base})"


@dataclass(frozen=True, slots=True, eq=False)
class DefaultsSource(Step):
    """A default of a function: positional (``which`` an index, counted from the end where it is
    negative) or keyword-only (a name)."""

    which: int | str

    def code(self, base: str, name: Name) -> str:
        table = "__defaults__" if isinstance(self.which, int) else "__kwdefaults__"
        return f"{base}.{table}[{self.which!r}]"


@dataclass(frozen=True, slots=True, eq=False)
class ClosureSource(Step):
    """Content of cell number ``index`` of a function object."""

    index: int

    def code(self, base: str, name: Name) -> str:
        return f"{base}.__closure__[{self.index}].cell_contents"


@dataclass(frozen=True, slots=True, eq=False)
class TensorPropertySource(Step):
    """One number of a tensor: ``size(dim)``, ``stride(dim)`` or ``storage_offset()``."""

    prop: TensorProperty
    dim: int | None = None

    def code(self, base: str, name: Name) -> str:
        return f"{base}.{self.prop}({'' if self.dim is None else self.dim})"


GLOBAL_STATE = AnchorSource("<torch state>")
SHAPES = AnchorSource("<shapes>")
