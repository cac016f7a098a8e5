"""``Source``: where an object of the traced program was found, and how to find it again.

A source is a path. Its root is a parameter (``LocalSource``), a global variable, a free variable
of the entry function, or a whole namespace; every further step (attribute, item, ...) wraps the
step before as ``base``. Sources are immutable and hash in constant time, so they serve as keys.

``expr`` prints a source as Python over these roots:

* parameter names themselves,
* ``F``: the entry function object,
* ``G``: the globals of the entry function,
* ``M``: a mapping from module name to that module's namespace dict,
* ``next_nth`` and ``remaining``: helpers of ``torchsmith_guards`` (n-th key, iterator content).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

TensorProperty = Literal["size", "stride", "storage_offset"]

_LITERALS = (int, str, bytes, bool, float, complex, type(None), type(Ellipsis))


def _is_literal(value: object) -> bool:
    if type(value) is tuple:
        return all(_is_literal(v) for v in value)
    return type(value) in _LITERALS and value == value


def _key_text(key: object) -> str:
    if type(key) is float and key in (float("inf"), float("-inf")):
        return f"float({str(key)!r})"
    if _is_literal(key):
        return repr(key)
    if isinstance(key, enum.Enum):
        return f"<{type(key).__name__}.{key.name}>"
    return f"<{type(key).__name__} {getattr(key, '__name__', '')}>".replace(" >", ">")


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Base of all sources.

    Attributes:
        base: the source that this one takes a step from; None for roots.
        depth: number of steps from the root (0 for roots).
        expr: Python expression text over the roots (see the module's docstring).
    """

    depth: int = field(init=False, repr=False)
    expr: str = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        base = self.base
        object.__setattr__(self, "depth", 0 if base is None else base.depth + 1)
        object.__setattr__(self, "expr", self._text())
        object.__setattr__(self, "_hash", hash((type(self), self._key())))

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

    def is_prefix_of(self, other: Source) -> bool:
        """True when ``other`` is this source or is reached through it."""
        here: Source | None = other
        while here is not None and here.depth >= self.depth:
            if here == self:
                return True
            here = here.base
        return False

    @property
    def guardable(self) -> bool:
        """False when facts about this object need or allow no check (see ``ConstantSource``)."""
        return self.root.guardable

    def _key(self) -> object:
        raise NotImplementedError(type(self).__name__)  # every concrete class defines it

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

    @property
    def guardable(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, eq=False)
class LocalSource(_Root):
    """A parameter of the compiled function (and of its checker)."""

    name: str

    def _key(self) -> object:
        return self.name

    def _text(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class CellSource(_Root):
    """Content of free variable ``name``, number ``index`` in ``F.__closure__``."""

    name: str
    index: int

    def _key(self) -> object:
        return (self.name, self.index)

    def _text(self) -> str:
        return f"F.__closure__[{self.index}].cell_contents"


@dataclass(frozen=True, slots=True, eq=False)
class NamespaceSource(_Root):
    """A whole namespace dict: of the entry function (``module`` None) or of a named module."""

    module: str | None = None

    def _key(self) -> object:
        return self.module

    def _text(self) -> str:
        return "G" if self.module is None else f"M[{self.module!r}]"


@dataclass(frozen=True, slots=True, eq=False)
class GlobalSource(_Root):
    """Global variable ``name`` of the entry function, or of the module named ``module``."""

    name: str
    module: str | None = None

    def _key(self) -> object:
        return (self.name, self.module)

    def _text(self) -> str:
        space = "G" if self.module is None else f"M[{self.module!r}]"
        return f"{space}[{self.name!r}]"


@dataclass(frozen=True, slots=True, eq=False)
class FunctionSource(_Root):
    """The entry function object itself, ``F``."""

    def _key(self) -> object:
        return "F"

    def _text(self) -> str:
        return "F"


@dataclass(frozen=True, slots=True, eq=False)
class ConstantSource(_Root):
    """An object that the compiler installed under ``name``: always the same, never guarded."""

    name: str

    @property
    def guardable(self) -> bool:
        return False

    def _key(self) -> object:
        return self.name

    def _text(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticSource(_Root):
    """A local variable made by emitted code; it does not exist yet when guards are checked."""

    name: str

    @property
    def guardable(self) -> bool:
        return False

    def _key(self) -> object:
        return self.name

    def _text(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class GlobalStateSource(_Root):
    """Anchor of ``GLOBAL_STATE`` guards: torch's ambient state, not an object."""

    def _key(self) -> object:
        return "global state"

    def _text(self) -> str:
        return "<torch state>"


@dataclass(frozen=True, slots=True, eq=False)
class ShapeEnvSource(_Root):
    """Anchor of ``SHAPE`` guards: relations between several sizes, not an object."""

    def _key(self) -> object:
        return "shapes"

    def _text(self) -> str:
        return "<shapes>"


# --- steps ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Step(Source):
    base: Source

    def _key(self) -> object:
        return self.base


@dataclass(frozen=True, slots=True, eq=False)
class AttrSource(_Step):
    """``base.attr``, by ordinary attribute access."""

    attr: str

    def _key(self) -> object:
        return (self.base, self.attr)

    def _text(self) -> str:
        if self.attr.isidentifier():
            return f"{self.base.expr}.{self.attr}"
        return f"getattr({self.base.expr}, {self.attr!r})"


@dataclass(frozen=True, slots=True, eq=False)
class ItemSource(_Step):
    """``base[key]``; ``key`` is any hashable constant object."""

    key: object

    def _key(self) -> object:
        return (self.base, type(self.key), self.key)

    def _text(self) -> str:
        return f"{self.base.expr}[{_key_text(self.key)}]"


@dataclass(frozen=True, slots=True, eq=False)
class DictKeySource(_Step):
    """The ``n``-th key of a dict (or element of another ordered iterable), in order."""

    n: int

    def _key(self) -> object:
        return (self.base, self.n)

    def _text(self) -> str:
        return f"next_nth({self.base.expr}, {self.n})"


@dataclass(frozen=True, slots=True, eq=False)
class IteratorItemSource(_Step):
    """The ``n``-th remaining item of a tuple or list iterator, which is not advanced."""

    n: int

    def _key(self) -> object:
        return (self.base, self.n)

    def _text(self) -> str:
        return f"remaining({self.base.expr})[{self.n}]"


@dataclass(frozen=True, slots=True, eq=False)
class TypeSource(_Step):
    """``type(base)``."""

    def _text(self) -> str:
        return f"type({self.base.expr})"


@dataclass(frozen=True, slots=True, eq=False)
class CallSource(_Step):
    """``base()``: the referent of a weak reference."""

    def _text(self) -> str:
        return f"{self.base.expr}()"


@dataclass(frozen=True, slots=True, eq=False)
class DefaultsSource(_Step):
    """A default of a function: positional (``which`` an int) or keyword-only (a name)."""

    which: int | str

    def _key(self) -> object:
        return (self.base, self.which)

    def _text(self) -> str:
        table = "__defaults__" if isinstance(self.which, int) else "__kwdefaults__"
        return f"{self.base.expr}.{table}[{self.which!r}]"


@dataclass(frozen=True, slots=True, eq=False)
class ClosureSource(_Step):
    """Content of cell number ``index`` of a function object."""

    index: int

    def _key(self) -> object:
        return (self.base, self.index)

    def _text(self) -> str:
        return f"{self.base.expr}.__closure__[{self.index}].cell_contents"


@dataclass(frozen=True, slots=True, eq=False)
class GradSource(_Step):
    """``base.grad`` of a tensor."""

    def _text(self) -> str:
        return f"{self.base.expr}.grad"


@dataclass(frozen=True, slots=True, eq=False)
class TensorPropertySource(_Step):
    """One number of a tensor: ``size(dim)``, ``stride(dim)`` or ``storage_offset()``."""

    prop: TensorProperty
    dim: int | None = None

    def _key(self) -> object:
        return (self.base, self.prop, self.dim)

    def _text(self) -> str:
        if self.prop == "storage_offset":
            return f"{self.base.expr}.storage_offset()"
        return f"{self.base.expr}.{self.prop}({self.dim})"


def MethodSelfSource(base: Source) -> AttrSource:
    """``base.__self__`` of a bound method."""
    return AttrSource(base, "__self__")


def FuncSource(base: Source) -> AttrSource:
    """``base.__func__`` of a bound method."""
    return AttrSource(base, "__func__")


GLOBAL_STATE = GlobalStateSource()
SHAPES = ShapeEnvSource()
