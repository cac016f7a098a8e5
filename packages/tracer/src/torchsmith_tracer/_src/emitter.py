"""``Emitter``, the ``cg`` object: values say by which code their real object is made again.

What it makes is Python source text: expressions (``expr``, ``const``, ``call`` ...) and
statements (``set_attr``, ``effect`` ...). Text rather than bytecode: it is the same for every
CPython version, CPython compiles it in C, and a person can read it. Every value is a name once it
is made, so expressions are evaluated where they are used without changing any order that shows.

How a ``Value`` takes part:

``reconstruct(self, cg)``
    The expression that makes the object. Called at most once per value and body, and only when
    the value cannot be loaded by its source; ``cg.expr(child)`` is a part. The result is kept in
    a temporary, so identity (one value, one object) holds by itself.
``reconstruct_fill(self, cg)`` (optional)
    Called right after the object is remembered, so cycles are fine: use nothing in
    ``reconstruct`` that needs the content, fill it in here (``cg.expr(self)`` is the object).
``write_back(self, cg)`` (optional)
    For existing containers that changed: emit statements that bring the real object up to date.
    Without it ``codegen/replay.py`` handles list, dict, set, deque and their subclasses.

Loads by source and the graph's inputs are evaluated *before* the graph runs and before any effect
is replayed, so a source always means the object at entry. A tensor or symbolic number made by the
graph is ``cg.graph_output(self)``.
"""

from __future__ import annotations

import builtins
import contextlib
import keyword
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torchsmith_guards as guards

from torchsmith_tracer._src.breaks.signals import InternalError
from torchsmith_tracer._src.effects.journal import Deleted, Journal

if TYPE_CHECKING:
    from torchsmith_tracer._src.values.base import Value
    from torchsmith_tracer._src.values.tracebacks import TracebackValue


_PLAIN_SETATTR: tuple[object, ...] = (
    object.__setattr__,
    types.ModuleType.__setattr__,
    type.__setattr__,
    types.FunctionType.__setattr__,
)


class Emitter:
    """Builds the source text of one body.

    Args:
        params: names of the body's parameters (``safe_names`` has been applied to the user's; ``F``
            comes first when the function has free variables).
        bind: objects that source roots denote (``G``, ``M``); they become globals of the body.
        journal: attribute stores on new objects are taken from here when such an object is made.
        suspended_code: makes the code of a generator that is suspended (``generator_code``).
        kept: which variables an entry of a traceback has to hold (``Abandoned.kept``).
    """

    def __init__(
        self,
        params: Sequence[str],
        bind: dict[str, object],
        journal: Journal,
        suspended_code: Callable[..., types.CodeType],
        kept: Callable[[TracebackValue], dict[str, Value]],
    ) -> None:
        self.params = tuple(params)
        self.namespace: dict[str, object] = dict(bind)
        self._journal = journal
        self.suspended_code, self.kept = suspended_code, kept
        self.loads: list[str] = []  # statements before the graph call
        self.lines: list[str] = []  # statements after it
        self.new_attrs: set[Value] = set()  # new objects whose attribute stores were emitted
        self.outputs: dict[Value, str] = {}  # values the graph must return -> local name
        self._memo: dict[Value, str] = {}
        self._sources: dict[guards.Source, str] = {}
        self._constants: dict[int, str] = {}
        self._literals: set[str] = set()
        self._temps = 0
        self._taken = {*self.params, *self.namespace}

    # --- expressions -------------------------------------------------------------------------
    def expr(self, value: Value) -> str:
        """The object that ``value`` stands for, by a name or a literal; the same each time."""
        name = self._memo.get(value)
        if name is None:
            source = value.source
            if source is not None and self.loadable(source):
                name = self._memo[value] = self.source_name(source)
            else:
                name = self._make(value)
        return name

    def const(self, obj: object, hint: str = "const") -> str:
        """A constant: written as a literal where possible, else bound by name."""
        if not (guards.is_literal(obj) and guards.is_short(obj)):
            return self.bound(obj, hint)
        text = repr(obj)
        text = f"({text})" if text.startswith("-") else text
        self._literals.add(text)
        return text

    def bound(self, obj: object, hint: str = "") -> str:
        """An object that the body refers to by name (``hint`` becomes part of the name)."""
        name = self._constants.get(id(obj))
        if name is None:
            name = self.fresh(hint or str(getattr(obj, "__name__", "")).strip("_") or "const")
            self.namespace[name] = obj
            self._constants[id(obj)] = name
        return name

    def graph_output(self, value: Value) -> str:
        """What the graph computed for ``value`` (a tensor or number with an fx node)."""
        name = self.outputs.get(value)
        if name is None:
            name = self.outputs[value] = f"g{len(self.outputs)}"
            self._taken.add(name)
        return name

    def call(self, fn: object, *args: Value | str, **named: Value | str) -> str:
        """A call of the constant ``fn``. Arguments are values or expressions."""
        return self.call_of(self.bound(fn), args, named)

    def method(self, value: Value, name: str, *args: Value | str) -> str:
        """``value.name(*args)``."""
        return self.call_of(self.attr(value, name), args)

    def call_of(
        self, fn: str, args: Sequence[Value | str], named: Mapping[str, Value | str] | None = None
    ) -> str:
        """A call of the expression ``fn``."""
        texts = self._texts(args)
        for name, arg in (named or {}).items():
            (text,) = self._texts((arg,))
            texts.append(f"{name}={text}" if _plain_name(name) else f"**{{{name!r}: {text}}}")
        return f"{fn}({', '.join(texts)})"

    def attr(self, value: Value, name: str) -> str:
        """``value.name``."""
        obj = self.expr(value)
        obj = obj if obj[0] not in "-0123456789" else f"({obj})"
        return f"{obj}.{name}" if _plain_name(name) else f"getattr({obj}, {name!r})"

    def tuple_of(self, items: Iterable[Value | str]) -> str:
        """A tuple of values or expressions."""
        texts = self._texts(items)
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    def list_of(self, items: Iterable[Value | str]) -> str:
        """A new list of values or expressions."""
        return f"[{', '.join(self._texts(items))}]"

    def dict_of(self, pairs: Iterable[tuple[Value | str, Value | str]]) -> str:
        """A new dict of pairs of values or expressions."""
        return "{" + ", ".join([": ".join(self._texts(pair)) for pair in pairs]) + "}"

    def _texts(self, parts: Iterable[Value | str]) -> list[str]:
        return [part if isinstance(part, str) else self.expr(part) for part in parts]

    # --- statements --------------------------------------------------------------------------
    def statement(self, text: str) -> None:
        """Append a statement."""
        self.lines.append(text)

    def effect(self, fn: object, *args: Value | str) -> None:
        """Call the constant ``fn`` for its effect."""
        self.statement(self.call(fn, *args))

    def set_attr(self, obj: Value, name: str, value: Value | str) -> None:
        """``obj.name = value``."""
        text, target = *self._texts((value,)), self.expr(obj)
        plain = _plain_name(name)
        self.statement(
            f"{target}.{name} = {text}" if plain else f"setattr({target}, {name!r}, {text})"
        )

    def set_attrs(
        self, value: Value, stores: Mapping[str, Value | Deleted], dropped: Iterable[str] = ()
    ) -> None:
        """Emit attribute stores on one object, after the deletion of ``dropped`` ones: an attribute
        that traced code both made and deleted was never there."""
        kind = value.python_type()
        if kind is dict:  # a namespace: stores are global variables
            for name in dropped:
                self.effect(dict.pop, value, self.const(name), "None")
            for name, new in stores.items():
                if not isinstance(new, Deleted):
                    self.statement(f"{self.expr(value)}[{self.const(name)}] = {self.expr(new)}")
            return
        plain = kind.__setattr__ in _PLAIN_SETATTR
        for name in dropped:
            if _is_hidden(kind, name):
                self.effect(dict.pop, self.attr(value, "__dict__"), self.const(name), "None")
                continue
            slot = self.bound(_base_slot(kind, "__delattr__"))
            self.effect(_drop, slot, value, self.const(name))
        for name, new in stores.items():
            if isinstance(new, Deleted):
                continue
            if _is_hidden(kind, name):
                table = self.attr(value, "__dict__")
                self.effect(dict.__setitem__, table, self.const(name), new)
            elif plain:
                self.set_attr(value, name, new)
            else:
                # The class's own __setattr__ has been traced already; only the slot is written.
                self.effect(_base_slot(kind, "__setattr__"), value, self.const(name), new)

    def temporary(self, text: str, hint: str = "t") -> str:
        """A local variable with the value of an expression; names stay as they are."""
        if text.isidentifier() or text in self._literals:
            return text
        name = self.fresh(hint)
        self.statement(f"{name} = {text}")
        return name

    # --- for the code generator --------------------------------------------------------------
    def fresh(self, hint: str) -> str:
        """A name not yet used in this body."""
        hint = hint if hint.isidentifier() else "obj"
        while True:
            self._temps += 1
            name = f"{hint}_{self._temps}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def temporaries(self, which: Callable[[Value], bool] | None = None) -> list[str]:
        """Locals of the body that hold objects made for certain values; those of all, and what
        they were read from."""
        kept = {*self.params, *self.namespace, *self._literals, *_KEYWORDS}
        names = [n for v, n in self._memo.items() if which is None or which(v)]
        names += self._sources.values() if which is None else ()
        return [n for n in dict.fromkeys(names) if n.isidentifier() and n not in kept]

    def loadable(self, source: guards.Source) -> bool:
        """False when the source's root does not exist in the body."""
        root = source.root
        if isinstance(root, guards.LocalSource):
            return root.name in self.params
        if isinstance(root, guards.FunctionSource):
            return "F" in self._taken
        return True

    def source_name(self, source: guards.Source) -> str:
        """Name of a local that holds the object at ``source``, fetched once, before the graph."""
        name = self._sources.get(source)
        if name is not None:
            return name
        root = source.root
        if not self.loadable(source):
            raise InternalError(f"source {source.expr} cannot be loaded here")
        if source.base is None:
            if isinstance(root, guards.LocalSource | guards.FunctionSource):
                name = source.expr
            elif isinstance(root, guards.NamespaceSource) and root.module is None:
                name = "G"
            elif isinstance(root, guards.PinnedSource):
                name = self.bound(root.obj, "pinned")
            elif isinstance(root, guards.ClassDictSource):
                name = self.bound(vars(root.cls), "class_dict")
            else:
                name = self._prefetch(source.expr)
        else:
            assert isinstance(source, guards.Step)
            name = self._prefetch(source.code(self.source_name(source.base), self._named))
        self._sources[source] = name
        return name

    def _named(self, obj: object, hint: str) -> str:
        return self.source_name(obj) if isinstance(obj, guards.Source) else self.bound(obj, hint)

    def _prefetch(self, expr: str) -> str:
        name = self.fresh("s")
        self.loads.append(f"{name} = {expr}")
        return name

    def _make(self, value: Value) -> str:
        name = self._memo[value] = self.temporary(value.reconstruct(self))
        value.reconstruct_fill(self)  # before the stores: a function is given its own names
        stores, owner = self._journal.attrs.get(value), self._journal.shared.get(value)
        if owner is not None and value.source is None:
            self.set_attr(value, "__dict__", self.attr(owner, "__dict__"))
        elif (entries := getattr(value, "entries", None)) is not None and value.source is None:
            self.set_attr(value, "__dict__", entries.owner or entries)
        elif stores is not None and value.source is None:
            self.new_attrs.add(value)
            kept = {k: v for k, v in stores.items() if not isinstance(v, Deleted)}
            self.set_attrs(value, kept)  # what was deleted again was never there
        return name


def plain_name(name: str) -> str:
    """A local's name as an identifier: comprehensions call their argument ``.0``, and tools that
    rewrite syntax trees choose names that no user could."""
    if name.isidentifier():
        return name
    return "___" + "".join(c if c.isidentifier() or c.isdigit() else f"_{ord(c):x}_" for c in name)


def safe_names(names: Sequence[str]) -> tuple[str, ...]:
    """A user's parameter names as names in bodies and checkers: identifiers, all different, that
    hide neither a builtin that generated text uses nor one of its own names."""
    out: dict[str, None] = {}
    for name in names:
        safe = plain_name(name)
        while safe in _RESERVED or safe in out or _OWN_NAME.fullmatch(safe):
            safe += "_"
        out[safe] = None
    return tuple(out)


def _drop(delete: Callable[[object, str], None], obj: object, name: str) -> None:
    with contextlib.suppress(AttributeError):
        delete(obj, name)


def _is_hidden(kind: type, name: str) -> bool:
    """Whether a property or other descriptor in Python stands before an instance's own entry."""
    found = next((table[name] for c in kind.__mro__ if name in (table := vars(c))), None)
    cls = type(found)
    return (hasattr(cls, "__set__") or hasattr(cls, "__delete__")) and not isinstance(
        found, types.GetSetDescriptorType | types.MemberDescriptorType
    )


def _base_slot(kind: type, name: str) -> object:
    """The C-level ``__setattr__`` or ``__delattr__`` below Python overrides; ``object``'s refuses
    some types."""
    for base in kind.__mro__:
        own = base.__dict__.get(name)
        if isinstance(own, types.WrapperDescriptorType):
            return own
    return getattr(object, name)


def _plain_name(name: str) -> bool:
    # Names with two leading underscores are fine here: bodies are never inside a class.
    return name.isidentifier() and name not in _KEYWORDS


_KEYWORDS = frozenset(keyword.kwlist)
_RESERVED = frozenset(("F", "G", "M", *dir(builtins), *_KEYWORDS))
_OWN_NAME = re.compile(r"[gK]\d+")  # outputs of the graph, constants without a path
