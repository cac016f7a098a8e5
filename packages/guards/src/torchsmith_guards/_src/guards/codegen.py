"""Checker generation: a guard set as one Python function, with functions for what repeats.

The function walks the tree of sources depth first; each path is fetched once into a local
variable, its own guards come before the paths below it, and branches that are cheap and likely to
fail come first. Equal branches (the blocks of a model) are checked by one function that is called
for each of them. Relations between paths come last, when all of them are known to be of the right
kind. Any exception means "does not hold": a path that is gone is a guard that fails.

Attributes of an ``nn.Module`` are read from its ``__dict__``, fetched once, where no class of the
module's has anything of that name; the checker asserts that the classes still have not.
"""

from __future__ import annotations

import builtins
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from torchsmith_guards._src.guards import conditions
from torchsmith_guards._src.guards.conditions import Names
from torchsmith_guards._src.guards.global_state import GlobalState
from torchsmith_guards._src.guards.guard import Guard, GuardKind
from torchsmith_guards._src.guards.shape_relation import Question, ShapeRelation
from torchsmith_guards._src.guards.tensor_spec import TensorSpec
from torchsmith_guards._src.guards.tree import COST_NS, FETCH_NS, Node, Tree, branch_rank, runs
from torchsmith_guards._src.interruptions import is_interruption
from torchsmith_guards._src.shapes.nodes import FUNCTIONS
from torchsmith_guards._src.sources import sources as src
from torchsmith_guards._src.sources.arrays import share_memory
from torchsmith_guards._src.sources.sources import Source
from torchsmith_guards.errors import UnguardableSourceError

_is_neg = torch.Tensor.is_neg


@dataclass(frozen=True, slots=True)
class Generated:
    """Source text of a checker, the objects that it names, and its estimated cost."""

    text: str
    namespace: dict[str, object]
    cost_ns: float


@dataclass(frozen=True, slots=True)
class Asking:
    """What a checker does about guards that it has no code for.

    Attributes:
        anchors: paths of the objects to ask about.
        unchanged: called with those; True when the guards hold.
        in_full: called with the checker's arguments otherwise; its result is the checker's.
    """

    anchors: tuple[Source, ...]
    unchanged: Callable[..., bool]
    in_full: Callable[..., bool]


@dataclass(slots=True)
class _Function:
    """One function of the text, while it is written.

    Attributes:
        lines: its statements.
        vars: the variable (or argument) that holds the object at a node.
        dicts: likewise the instance dict of the module at a node.
        floats: variables of tensors that must not be lazily negated.
    """

    lines: list[str] = field(default_factory=list)
    vars: dict[Node, str] = field(default_factory=dict)
    dicts: dict[Node, str] = field(default_factory=dict)
    floats: list[str] = field(default_factory=list)

    def fail_if(self, tests: Sequence[tuple[str, str]]) -> None:
        """``tests``: conditions with what to say about each."""
        comments = [" ".join(comment.split()) for _, comment in tests]
        if len(tests) == 1:
            self.lines.append(f"if {tests[0][0]}: return False  # {comments[0]}")
        elif tests:
            self.lines.append("if (")
            for n, (condition, _) in enumerate(tests):
                self.lines.append(f"    {'or ' if n else ''}{condition}  # {comments[n]}")
            self.lines.append("): return False")


def generate(
    guards: Sequence[Guard],
    params: tuple[str, ...],
    bind: Mapping[str, object],
    name: str,
    asking: Asking | None = None,
    known: Mapping[str, object] | None = None,
) -> Generated:
    """The checker function of ``guards`` as text.

    Args:
        guards: what it checks.
        params: its parameters.
        bind: objects for the other roots.
        name: its name.
        asking: about other guards that decide as well.
        known: the globals that the text will have.

    Raises:
        UnguardableSourceError: the root of a guard is neither a parameter nor bound.
    """
    names = Names({} if known is None else known)
    names.taken.add(name)
    return _Generator(params, bind, names).run(guards, name, asking)


class _Generator:
    def __init__(self, params: tuple[str, ...], bind: Mapping[str, object], names: Names) -> None:
        self.names = names
        # Arguments are passed by position, so one that is called like a builtin (`type`, `id`)
        # or like a function that the text uses can have another name here.
        self.params = {name: self.names.unique(name) for name in params}
        self.bind = bind
        self.tree = Tree()
        self.properties: dict[src.TensorPropertySource, str] = {}
        self.needed: dict[Source, dict[src.TensorPropertySource, None]] = {}
        self.unshadowed: dict[type, dict[str, None]] = {}
        self.main = _Function()
        self.here = self.main
        self.functions: dict[int, str] = {}
        self.texts: list[str] = []

    def run(self, guards: Sequence[Guard], name: str, asking: Asking | None) -> Generated:
        relations = [g for g in guards if g.kind.relational]
        ambient = [g for g in guards if g.kind is GuardKind.GLOBAL_STATE]
        for guard in guards:
            if guard.kind is GuardKind.GLOBAL_STATE:
                continue
            if guard.kind.relational:
                self._need(guard)
            else:
                self.tree.node(guard.source).guards.append(guard)
        anchors = () if asking is None else asking.anchors
        indexed = [s for s in self.tree.nodes if isinstance(s, src.IndexedSource)]
        self.tree.finish([*self.needed, *anchors, *indexed])
        roots = sorted(self.tree.roots, key=branch_rank)
        arguments = [r for r in roots if isinstance(r.source, src.LocalSource)]
        for guard in ambient:  # first: under a mode of the user's, it would see tensors being read
            self.main.fail_if([(f"not {self._ambient(guard)}()", _comment(guard))])
        for root in arguments:
            self._emit(root)
        for root in roots:
            if not isinstance(root.source, src.LocalSource):
                self._emit(root)
        self._negative_bits(self.main)
        for guard in relations:
            self.main.fail_if([(self._relation(guard), _comment(guard))])
        self._classes()
        last = "True" if asking is None else self._ask(asking)
        error, interrupted = self.names.unique("error"), self.names.constant(is_interruption)
        cost = 60.0 + sum(COST_NS[g.kind] for g in guards) + FETCH_NS * len(self.tree.nodes)
        text = "\n".join(
            [
                *self.texts,
                f"def {name}({', '.join(self.params.values())}):",
                "    try:",
                *(f"        {line}" for line in self.main.lines or ["pass"]),
                f"    except Exception as {error}:  # a path that is gone is a guard that fails",
                f"        if {interrupted}({error}): raise",
                "        return False",
                f"    return {last}",
                "",
            ]
        )
        return Generated(text, self.names.namespace, cost)

    def _ask(self, asking: Asking) -> str:
        """Ask whether anything has changed; the expression to go on with if so."""
        unchanged = self.names.constant(asking.unchanged, "unchanged")
        in_full = self.names.constant(asking.in_full, "check_in_full")
        objects = ", ".join(self._fetch(self.tree.node(anchor)) for anchor in asking.anchors)
        self.main.lines.append(f"if {unchanged}({objects}): return True")
        return f"{in_full}({', '.join(self.params.values())})"

    def _need(self, guard: Guard) -> None:
        """Make sure that the paths of a relation are in the tree."""
        for source in guard.sources():
            if isinstance(source, src.TensorPropertySource) and guard.kind is GuardKind.SHAPE:
                self.tree.node(source.base)
                self.needed.setdefault(source.base, {})[source] = None
            else:
                self.tree.node(source)

    # --- branches --------------------------------------------------------------------------

    def _emit(self, node: Node) -> None:
        """Fetch and check a branch inside the current function."""
        self._fetch(node)
        self._check(node)

    def _check(self, node: Node) -> None:
        here, var = self.here, self.here.vars[node]
        tests: list[tuple[str, str]] = []
        guards = node.guards
        absent = [g for g in guards if conditions.is_absence(g)]
        if len(absent) > 1:
            tests.append((conditions.absent(self.names, var, absent), _comment(absent[0])))
            guards = [g for g in guards if not conditions.is_absence(g)]
        for guard in guards:
            if isinstance(guard.expected, TensorSpec):
                here.fail_if(tests)
                tests = []
                self._tensor(var, guard, guard.expected)
            else:
                tests.append((conditions.condition(self.names, var, guard), _comment(guard)))
        children = list(node.children.values())
        leaves = [c for c in children if c.guards and not c.children]
        single = [c for c in leaves if conditions.reads_once(c.guards)]
        for child in single:
            text = self._step(node, child.source)
            (guard,) = child.guards
            tests.append((conditions.condition(self.names, text, guard), _comment(guard)))
        here.fail_if(tests)
        for prop in self.needed.get(node.source, ()):
            if prop not in self.properties:
                dim = "" if prop.dim is None else prop.dim
                self.properties[prop] = name = self.names.unique(f"{var}_{prop.prop}_{dim}")
                here.lines.append(f"{name} = {var}.{prop.prop}({dim})")
        rest = [c for c in children if c not in single]
        for group in runs(rest, lambda c: c.form if self._loops(c) else None):
            self._group(node, group)

    def _loops(self, node: Node) -> bool:
        source = node.source
        if not isinstance(source, src.ItemSource) or source.of is not None:
            return False
        return src.is_literal(source.key) and self.tree.shared(node)

    def _group(self, parent: Node, group: list[Node]) -> None:
        first = group[0]
        if not self.tree.shared(first):
            self._emit(first)
            return
        function = self._function(first)
        if len(group) == 1:
            text = self._step(parent, first.source)
            self.here.lines.append(f"if not {function}({text}): return False")
            return
        keys = tuple(c.source.key for c in group if isinstance(c.source, src.ItemSource))
        key = self.names.unique("key")
        self.here.lines += [
            f"for {key} in {keys!r}:",
            f"    if not {function}({self.here.vars[parent]}[{key}]): return False",
        ]

    def _function(self, node: Node) -> str:
        """The name of the function that checks branches like ``node``, written when first used."""
        known = self.functions.get(node.form)
        if known is not None:
            return known
        kind = node.expected_type
        title = re.sub(r"\W", "_", kind.__name__) if kind is not None else "branch"
        name = self.functions[node.form] = self.names.unique(f"check_{title}")
        outer, self.here = self.here, _Function()
        argument = self.names.unique(title.lower())
        self.here.vars[node] = argument
        self._check(node)
        self._negative_bits(self.here)
        lines = [f"def {name}({argument}):", *(f"    {line}" for line in self.here.lines)]
        self.texts.append("\n".join([*lines, "    return True", ""]))
        self.here = outer
        return name

    # --- paths -----------------------------------------------------------------------------

    def _fetch(self, node: Node) -> str:
        """The variable of ``node`` in the current function; fetches it where it is not yet."""
        known = self.here.vars.get(node)
        if known is not None:
            return known
        source = node.source
        if source.base is None:
            text = self._root(source)
        else:
            parent = self.tree.node(source.base)
            self._fetch(parent)
            text = self._step(parent, source)
        if text.isidentifier():
            var = text
        else:
            var = self._variable(source)
            self.here.lines.append(f"{var} = {text}")
        self.here.vars[node] = var
        return var

    def _variable(self, source: Source) -> str:
        words = re.findall(r"[A-Za-z]\w*|\d+", _tail(source))
        keep = 3 if len(words) > 2 and words[-2].isdigit() else 2
        wish = "_".join(w.strip("_") for w in words[-keep:]) or "value"
        return self.names.unique(wish if not wish[0].isdigit() else f"v_{wish}")

    def _root(self, source: Source) -> str:
        match source:
            case src.LocalSource():
                return self._bound(source.name, source)
            case src.FunctionSource():
                return self._bound("F", source)
            case src.NamespaceSource():
                return self._namespace_of(source.module, source)
            case src.PinnedSource():
                named = isinstance(source.obj, type | types.FunctionType | types.ModuleType)
                return self.names.constant(source.obj, "" if named else type(source.obj).__name__)
            case src.ClassDictSource():
                return self.names.constant(
                    src.class_dict(source.cls), f"vars_{source.cls.__name__}"
                )
            case _:
                raise UnguardableSourceError(source=source.expr, params=tuple(self.params))

    def _bound(self, name: str, source: Source) -> str:
        if name in self.params:
            return self.params[name]
        return self.names.constant(self._bound_object(name, source), name)

    def _bound_object(self, name: str, source: Source) -> object:
        if name not in self.bind:
            raise UnguardableSourceError(source=source.expr, params=tuple(self.params))
        return self.bind[name]

    def _namespace_of(self, module: str | None, source: Source) -> str:
        if module is None:
            return self._bound("G", source)
        if "M" in self.params:
            return f"{self.params['M']}[{module!r}]"
        spaces = self._bound_object("M", source)
        if not isinstance(spaces, Mapping) or module not in spaces:
            raise UnguardableSourceError(source=source.expr, params=tuple(self.params))
        return self.names.constant(spaces[module], f"globals_of_{module}")

    def _step(self, parent: Node, source: Source) -> str:
        assert isinstance(source, src.Step), "roots have no parent"
        base = self.here.vars[parent]
        if isinstance(source, src.AttrSource):
            table = self._table(parent, base, source.attr)
            if table is not None:
                return table
        return source.code(base, self._named)

    def _named(self, obj: object, hint: str) -> str:
        if isinstance(obj, Source):
            return self._fetch(self.tree.node(obj))
        return self.names.constant(obj, hint)

    def _table(self, parent: Node, base: str, attr: str) -> str | None:
        """The attribute of a module as an item of its instance dict, where that is the same."""
        kind = parent.expected_type
        if kind is None or not issubclass(kind, nn.Module):
            return None
        if attr == "__dict__":
            return self._instance_dict(parent, base, kind)
        if any(attr in vars(c) for c in kind.__mro__):
            return None
        for cls in kind.__mro__[:-1]:
            self.unshadowed.setdefault(cls, {})[attr] = None
        return f"{self._instance_dict(parent, base, kind)}[{attr!r}]"

    def _instance_dict(self, parent: Node, base: str, kind: type) -> str:
        known = self.here.dicts.get(parent)
        if known is None:
            known = self.here.dicts[parent] = self.names.unique(f"{base}_dict")
            self.here.lines.append(f"{known} = {base}.__dict__")
            for cls in kind.__mro__[:-1]:
                if "__getattribute__" not in vars(cls):
                    self.unshadowed.setdefault(cls, {})["__getattribute__"] = None
        return known

    def _classes(self) -> None:
        """No class has got what would come before an attribute that was read from a dict."""
        for cls, attrs in self.unshadowed.items():
            keys = self.names.constant(vars(cls).keys(), f"names_in_{cls.__name__}")
            condition = f"not {keys}.isdisjoint({tuple(attrs)!r})"
            self.main.fail_if([(condition, "read from the instances' dicts")])

    # --- tensors and torch's state ---------------------------------------------------------

    def _ambient(self, guard: Guard) -> str:
        assert isinstance(guard.expected, GlobalState), "checked by Guard"
        return self.names.constant(guard.expected.matcher(), "same_torch_state")

    def _tensor(self, var: str, guard: Guard, spec: TensorSpec) -> None:
        """One combined comparison, then single sizes and strides where some are symbolic."""
        number = spec.dtype.is_floating_point or spec.dtype.is_complex
        if number and not spec.neg:  # the negative bit could be set, and must not be
            self.here.floats.append(var)
        self.here.fail_if([(conditions.tensor(self.names, var, spec), _comment(guard))])
        if not conditions.is_static(spec):
            self._unpack(var, guard, spec.size, "size", f"{var}.shape")
        if spec.stride and None in (*spec.size, *spec.stride):
            self._unpack(var, guard, spec.stride, "stride", f"{var}.stride()")

    def _unpack(
        self,
        var: str,
        guard: Guard,
        expected: tuple[int | None, ...],
        prop: src.TensorProperty,
        text: str,
    ) -> None:
        """Take sizes (or strides) apart, compare the static ones, keep the rest for relations."""
        targets: list[str] = []
        tests: list[str] = []
        for dim, value in enumerate(expected):
            name = self.names.unique(f"{var}_{prop}{dim}")
            targets.append(name)
            self.properties[src.TensorPropertySource(guard.source, prop, dim)] = name
            if value is not None:
                tests.append(f"{name} != {value}")
        self.here.lines.append(f"{', '.join(targets)}{',' * (len(targets) == 1)} = {text}")
        if tests:
            self.here.fail_if([(" or ".join(tests), _comment(guard))])

    def _negative_bits(self, function: _Function) -> None:
        """No lazily negated tensor among those that were not: one pass over all of them."""
        tensors = function.floats
        if not tensors:
            return
        if len(tensors) <= 2:
            condition = " or ".join(f"{t}.is_neg()" for t in tensors)
        else:
            is_neg = self.names.constant(_is_neg, "is_neg")
            condition = f"any(map({is_neg}, ({', '.join(tensors)})))"
        function.fail_if([(condition, "lazily negated")])

    # --- relations -------------------------------------------------------------------------

    def _relation(self, guard: Guard) -> str:
        match guard.expected:
            case Source() as other:
                first, second = (self._fetch(self.tree.node(s)) for s in (guard.source, other))
                return f"{first} is not {second}"
            case ShapeRelation() as relation:
                return self._shape(relation)
            case tuple() as others:
                objects = [self._fetch(self.tree.node(s)) for s in (guard.source, *others)]
                if guard.kind is GuardKind.DISJOINT:
                    return f"{self.names.constant(share_memory)}({', '.join(objects)})"
                return _distinct(objects)
            case _:
                raise TypeError(f"{guard.kind} is no relation")

    def _shape(self, relation: ShapeRelation) -> str:
        names = {
            symbol: self.properties[source]
            if isinstance(source, src.TensorPropertySource)
            else self._fetch(self.tree.node(source))
            for symbol, source in relation.bindings
        }
        if isinstance(relation.condition, Question):
            asked = self.names.constant(relation.condition.fn)
            return f"not {relation.condition.text(names, asked)}"
        text = relation.condition.text(names)
        for function in FUNCTIONS:
            if f"{function}(" in text and not hasattr(builtins, function):
                self.names.namespace[function] = FUNCTIONS[function]
        return f"not ({text})"


def _comment(guard: Guard) -> str:
    note = "; ".join(n for n in (guard.why, guard.user_line) if n)
    return f"{guard.source.expr}: {note}" if note else guard.source.expr


def _tail(source: Source) -> str:
    """The text of the last steps: enough for a name, without the whole path."""
    steps: list[str] = []
    here: Source | None = source
    while here is not None and len(steps) < 3:
        base = here.base
        steps.append(here.expr[len(base.expr) :] if base is not None else here.expr)
        here = base
    return "".join(reversed(steps))


def _distinct(names: list[str]) -> str:
    """The condition under which two of ``names`` are one object."""
    if len(names) <= 3:
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        return " or ".join(f"{a} is {b}" for a, b in pairs) or "False"
    return f"len({{*map(id, ({', '.join(names)}))}}) != {len(names)}"
