"""``Emitter``, the ``cg`` object: values emit the code that makes their real object again.

The emitter is a stack machine whose output is Python source text. Each ``load_*`` pushes one
object; ``build_*``, ``call``, ``load_attr`` pop their operands and push their result; statements
(``store_attr``, ``store_subscr``, ``pop_top``, ...) pop theirs. Text rather than bytecode: it is
the same for every CPython version, CPython compiles it in C, and a person can read it.

How a ``Value`` takes part:

``reconstruct(self, cg)``
    Push the object. Called at most once per value and body, and only when the value cannot be
    loaded by its source; ``cg.load(child)`` is how to push parts. The result is kept in a
    temporary, so identity (one value, one object) holds by itself.
``reconstruct_fill(self, cg)`` (optional)
    Called right after the object is remembered, so cycles are fine: push nothing in
    ``reconstruct`` that needs the content, fill it in here (``cg.load(self)`` gives the object).
``write_back(self, cg)`` (optional)
    For existing containers that changed: emit statements that bring the real object up to date.
    Without it ``codegen/replay.py`` handles list, dict, set, deque and their subclasses.

Loads by source and the graph's inputs are evaluated *before* the graph runs and before any effect
is replayed, so a source always means the object at entry. A tensor or symbolic number made by the
graph pushes itself with ``cg.graph_output(self)``.
"""

from __future__ import annotations

import builtins
import keyword
import re
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torchsmith_guards import (
    ClassDictSource,
    FunctionSource,
    LocalSource,
    NamespaceSource,
    PinnedSource,
    Source,
    Step,
    is_literal,
    is_short,
)

from torchsmith_tracer._src.breaks.signals import InternalError, Unsupported
from torchsmith_tracer._src.codegen.resume import generator_code, plain_name

if TYPE_CHECKING:
    from torchsmith_tracer._src.effects.journal import Journal
    from torchsmith_tracer._src.values.base import Value


class Emitter:
    """Builds the source text of one body.

    Args:
        params: names of the body's parameters (``safe_names`` has been applied to the user's; ``F``
            comes first when the function has free variables).
        bind: objects that source roots denote (``G``, ``M``); they become globals of the body.
        journal: attribute stores on new objects are taken from here when such an object is made.
    """

    def __init__(
        self, params: Sequence[str], bind: dict[str, object], journal: Journal | None = None
    ) -> None:
        self.params = tuple(params)
        self.namespace: dict[str, object] = dict(bind)
        self._journal = journal
        self.loads: list[str] = []  # statements before the graph call
        self.lines: list[str] = []  # statements after it
        self.new_attrs: set[Value] = set()  # new objects whose attribute stores were emitted
        self.outputs: dict[Value, str] = {}  # values the graph must return -> local name
        self._stack: list[tuple[str, bool]] = []  # (expression, evaluating it twice is harmless)
        self._memo: dict[Value, str] = {}
        self._sources: dict[Source, str] = {}
        self._constants: dict[int, str] = {}
        self._temps = 0
        self._spilled: list[str] = []  # locals for what was on the stack at a statement
        self._taken = {*self.params, *self.namespace}

    # --- loading -----------------------------------------------------------------------------
    def load(self, value: Value) -> None:
        """Push the object that ``value`` stands for; the same object each time."""
        name = self._memo.get(value)
        if name is None:
            source = value.source
            if source is not None and self.loadable(source):
                name = self._memo[value] = self.source_name(source)
            else:
                name = self._make(value)
        self._push(name, pure=True)

    def load_const(self, obj: object) -> None:
        """Push a constant: written as a literal where possible, else bound by name."""
        if is_literal(obj) and is_short(obj):
            text = repr(obj)
            self._push(f"({text})" if text.startswith("-") else text, pure=True)
            return
        self.load_global_constant(obj, "const")

    def load_suspended(
        self, code: types.CodeType, index: int, shape: str, names: Sequence[str]
    ) -> None:
        """Push the code of a generator that is suspended at an instruction."""
        self.load_const(generator_code(code, index, shape, names))

    def load_global_constant(self, obj: object, hint: str = "const") -> None:
        """Push an object that the body refers to by name (``hint`` becomes part of the name)."""
        name = self._constants.get(id(obj))
        if name is None:
            name = self.fresh(hint)
            self.namespace[name] = obj
            self._constants[id(obj)] = name
        self._push(name, pure=True)

    def load_callable(self, obj: object, hint: str = "fn") -> None:
        """Push a constant that is going to be called (see ``call``)."""
        self.load_global_constant(obj, hint)

    def load_temp(self, name: str) -> None:
        """Push a temporary made by ``store_temp``."""
        self._push(name, pure=True)

    def load_method(self, value: Value, name: str) -> None:
        """Push ``value.name``, to be called with ``call``."""
        self.load(value)
        self.load_attr(name)

    def graph_output(self, value: Value) -> None:
        """Push what the graph computed for ``value`` (a tensor or number with an fx node)."""
        name = self.outputs.get(value)
        if name is None:
            name = self.outputs[value] = f"g{len(self.outputs)}"
            self._taken.add(name)
        self._push(name, pure=True)

    # --- building ----------------------------------------------------------------------------
    def build_tuple(self, n: int) -> None:
        """Pop ``n`` objects, push their tuple."""
        items = self._pop(n)
        self._push(f"({', '.join(items)}{',' if n == 1 else ''})")

    def build_list(self, n: int) -> None:
        """Pop ``n`` objects, push a new list of them."""
        self._push(f"[{', '.join(self._pop(n))}]")

    def build_set(self, n: int) -> None:
        """Pop ``n`` objects, push a new set of them."""
        self._push("{" + ", ".join(self._pop(n)) + "}" if n else "set()")

    def build_map(self, n: int) -> None:
        """Pop ``n`` pairs (key, value, key, value ...), push a new dict of them."""
        flat = self._pop(2 * n)
        pairs = (f"{k}: {v}" for k, v in zip(flat[::2], flat[1::2], strict=True))
        self._push("{" + ", ".join(pairs) + "}")

    def build_slice(self, n: int) -> None:
        """Pop 2 or 3 objects, push their slice."""
        self._push(f"slice({', '.join(self._pop(n))})")

    def load_call(self, obj: object, hint: str, *args: Value) -> None:
        """Push what calling ``obj`` with ``args`` gives."""
        self.load_callable(obj, hint)
        for arg in args:
            self.load(arg)
        self.call(len(args))

    def call(self, nargs: int, kwnames: Sequence[str] = ()) -> None:
        """Pop ``nargs`` arguments (the last ones by the names ``kwnames``) and the callable below
        them, push the result."""
        fn, *args = self._pop(nargs + 1)
        first = nargs - len(kwnames)
        text = args[:first]
        for name, arg in zip(kwnames, args[first:], strict=True):
            text.append(f"{name}={arg}" if _plain_name(name) else f"**{{{name!r}: {arg}}}")
        self._push(f"{fn}({', '.join(text)})")

    def load_attr(self, name: str) -> None:
        """Replace the top by its attribute."""
        (obj,) = self._pop(1)
        self._push(f"{obj}.{name}" if _plain_name(name) else f"getattr({obj}, {name!r})")

    # --- statements --------------------------------------------------------------------------
    def store_attr(self, name: str) -> None:
        """Pop value and object (on top): ``object.name = value``."""
        value, obj = self._pop(2)
        target = f"{obj}.{name} = {value}"
        self.statement(target if _plain_name(name) else f"setattr({obj}, {name!r}, {value})")

    def delete_attr(self, name: str) -> None:
        """Pop object: ``del object.name``."""
        (obj,) = self._pop(1)
        self.statement(f"del {obj}.{name}" if _plain_name(name) else f"delattr({obj}, {name!r})")

    def store_subscr(self) -> None:
        """Pop value, container, key (on top): ``container[key] = value``."""
        value, container, key = self._pop(3)
        self.statement(f"{container}[{key}] = {value}")

    def pop_top(self) -> None:
        """Pop the top; its expression is still evaluated."""
        text, pure = self._stack.pop()
        if not pure:
            self.statement(text)

    def store_temp(self, hint: str = "t") -> str:
        """Pop the top into a local variable and return its name."""
        text, pure = self._stack.pop()
        if pure and text.isidentifier():
            return text
        name = self.fresh(hint)
        self.statement(f"{name} = {text}")
        return name

    def statement(self, text: str) -> None:
        """Append a statement; what is on the stack is evaluated first, to keep the order."""
        for i, (expr, pure) in enumerate(self._stack):
            if not pure:
                name = self.fresh("t")
                self.lines.append(f"{name} = {expr}")
                self._spilled.append(name)
                self._stack[i] = (name, True)
        self.lines.append(text)

    # --- for the code generator --------------------------------------------------------------
    def pop_expr(self) -> str:
        """Pop the top as expression text."""
        return self._stack.pop()[0]

    def expr(self, value: Value) -> str:
        """Expression text (a name or literal) for ``value``."""
        self.load(value)
        return self.pop_expr()

    def fresh(self, hint: str) -> str:
        """A name not yet used in this body."""
        hint = hint if hint.isidentifier() else "obj"
        while True:
            self._temps += 1
            name = f"{hint}_{self._temps}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def temporaries(self, which: Callable[[Value], bool]) -> list[str]:
        """Locals of the body that hold objects made for certain values, or may hold parts."""
        params = set(self.params)
        found = [
            n for v, n in self._memo.items() if n.isidentifier() and n not in params and which(v)
        ]
        return [*found, *self._spilled] if found else []

    def loadable(self, source: Source) -> bool:
        """False when the source's root does not exist in the body."""
        root = source.root
        if isinstance(root, LocalSource):
            return root.name in self.params
        if isinstance(root, FunctionSource):
            return "F" in self._taken
        return True

    def source_name(self, source: Source) -> str:
        """Name of a local that holds the object at ``source``, fetched once, before the graph."""
        name = self._sources.get(source)
        if name is not None:
            return name
        root = source.root
        if not self.loadable(source):
            raise InternalError(f"source {source.expr} cannot be loaded here")
        if source.base is None:
            if isinstance(root, LocalSource | FunctionSource):
                name = source.expr
            elif isinstance(root, NamespaceSource) and root.module is None:
                name = "G"
            elif isinstance(root, PinnedSource):
                self.load_global_constant(root.obj, "pinned")
                name = self.pop_expr()
            elif isinstance(root, ClassDictSource):
                self.load_global_constant(vars(root.cls), "class_dict")
                name = self.pop_expr()
            else:
                name = self._prefetch(source.expr)
        else:
            assert isinstance(source, Step)
            name = self._prefetch(source.code(self.source_name(source.base), self._constant_name))
        self._sources[source] = name
        return name

    def _constant_name(self, obj: object, hint: str) -> str:
        self.load_global_constant(obj, hint)
        return self.pop_expr()

    def _prefetch(self, expr: str) -> str:
        name = self.fresh("s")
        self.loads.append(f"{name} = {expr}")
        return name

    def _make(self, value: Value) -> str:
        depth = len(self._stack)
        reconstruct = getattr(value, "reconstruct", None)
        if reconstruct is None:
            raise Unsupported("cannot-rebuild", what=value.describe())
        reconstruct(self)
        if len(self._stack) != depth + 1:
            raise InternalError(f"reconstruct of {type(value).__name__} must push one object")
        text, pure = self._stack[-1]
        if pure:
            self._stack.pop()
            name = text
        else:
            name = self.store_temp()
        self._memo[value] = name
        stores = None if self._journal is None else self._journal.attrs.get(value)
        if stores is not None and value.source is None:
            from torchsmith_tracer._src.codegen.replay import emit_attrs
            from torchsmith_tracer._src.effects.journal import Deleted

            self.new_attrs.add(value)
            kept = {k: v for k, v in stores.items() if not isinstance(v, Deleted)}
            emit_attrs(self, value, kept)  # what was deleted again was never there
        fill = getattr(value, "reconstruct_fill", None)
        if fill is not None:
            fill(self)
            if len(self._stack) != depth:
                raise InternalError(f"reconstruct_fill of {type(value).__name__} left the stack")
        return name

    def _push(self, text: str, *, pure: bool = False) -> None:
        self._stack.append((text, pure))

    def _pop(self, n: int) -> list[str]:
        if n == 0:
            return []
        # All operands but a pure one are evaluated where they are used, in stack order, which is
        # Python's own order of evaluation.
        taken = self._stack[-n:]
        del self._stack[-n:]
        return [text for text, _ in taken]


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


def _plain_name(name: str) -> bool:
    # Names with two leading underscores are fine here: bodies are never inside a class.
    return name.isidentifier() and name not in _KEYWORDS


_KEYWORDS = frozenset(keyword.kwlist)
_RESERVED = frozenset(("F", "G", "M", *dir(builtins), *_KEYWORDS))
_OWN_NAME = re.compile(r"[gK]\d+")  # outputs of the graph, constants without a path
