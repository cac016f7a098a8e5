"""Checker generation: a guard set as one Python function.

The sources of all guards form a tree by path. The function walks it depth first; each path is
fetched once into a local variable, its own guards come before the paths below it, and branches that
are cheap and likely to fail come first. Relations between paths come last, when all of them are
known to be of the right kind. Any exception means "does not hold": a path that is gone is a guard
that fails.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from torchsmith_guards._src.guards import helpers
from torchsmith_guards._src.guards.global_state import GlobalState
from torchsmith_guards._src.guards.guard import Guard, GuardKind
from torchsmith_guards._src.guards.shape_relation import ShapeRelation
from torchsmith_guards._src.guards.tensor_spec import TensorSpec
from torchsmith_guards._src.shapes.nodes import FUNCTIONS
from torchsmith_guards._src.sources import sources as src
from torchsmith_guards._src.sources.sources import Source
from torchsmith_guards.errors import UnguardableSourceError

# Nanoseconds of one check on the machine it was written on: for ordering and estimates only.
COST_NS: dict[GuardKind, float] = {
    GuardKind.NONE: 5,
    GuardKind.NOT_NONE: 5,
    GuardKind.ID: 8,
    GuardKind.TYPE: 10,
    GuardKind.CONSTANT: 20,
    GuardKind.EMPTY: 10,
    GuardKind.CODE: 25,
    GuardKind.LENGTH: 35,
    GuardKind.DICT_CONTAINS: 25,
    GuardKind.HASATTR: 60,
    GuardKind.WEAKREF_ALIVE: 30,
    GuardKind.TUPLE_ITERATOR_LENGTH: 60,
    GuardKind.DICT_KEYS: 120,
    GuardKind.TENSOR: 320,
    GuardKind.GLOBAL_STATE: 300,
    GuardKind.SAME_OBJECT: 5,
    GuardKind.NOT_SAME: 40,
    GuardKind.SHAPE: 40,
}
_FETCH_NS = 20.0
_PROPERTY_NS = 125.0
_TUPLE_ITERATOR = type(iter(()))
_is_neg = torch.Tensor.is_neg


@dataclass(slots=True)
class _Node:
    """One path of the tree."""

    source: Source
    children: list[_Node] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    var: str = ""

    def cost(self) -> float:
        own = sum(COST_NS[g.kind] for g in self.guards)
        return _FETCH_NS + own + sum(c.cost() for c in self.children)


@dataclass(frozen=True, slots=True)
class Generated:
    """Source text of a checker, the objects that it names, and its estimated cost."""

    text: str
    namespace: dict[str, object]
    cost_ns: float


def generate(
    guards: Sequence[Guard], params: tuple[str, ...], bind: Mapping[str, object], name: str
) -> Generated:
    """The checker function of ``guards`` as text.

    Raises:
        UnguardableSourceError: the root of a guard is neither a parameter nor bound.
    """
    return _Generator(params, bind).run(guards, name)


class _Generator:
    def __init__(self, params: tuple[str, ...], bind: Mapping[str, object]) -> None:
        self.names: set[str] = {*keyword.kwlist, *dir(builtins), *FUNCTIONS}
        # Arguments are passed by position, so one that is called like a builtin (`type`, `id`)
        # or like a function that the text uses can have another name here.
        self.params = {name: self._unique(name) for name in params}
        self.bind = bind
        self.nodes: dict[Source, _Node] = {}
        self.roots: list[_Node] = []
        self.namespace: dict[str, object] = {}
        self.by_id: dict[int, str] = {}
        self.lines: list[str] = []
        self.properties: dict[src.TensorPropertySource, str] = {}
        self.needed: dict[Source, dict[src.TensorPropertySource, None]] = {}
        self.float_tensors: list[str] = []
        self.cost = 0.0

    def run(self, guards: Sequence[Guard], name: str) -> Generated:
        relations = [g for g in guards if g.kind.relational]
        ambient = [g for g in guards if g.kind is GuardKind.GLOBAL_STATE]
        for guard in guards:
            if guard.kind is GuardKind.GLOBAL_STATE:
                continue
            if guard.kind.relational:
                self._need(guard)
            else:
                self._node(guard.source).guards.append(guard)
        arguments = [r for r in self.roots if isinstance(r.source, src.LocalSource)]
        others = [r for r in self.roots if not isinstance(r.source, src.LocalSource)]
        for root in sorted(arguments, key=_branch_rank):
            self._emit(root)
        for guard in ambient:
            self._fail_if(f"not {self._ambient(guard)}()", guard)
        for root in sorted(others, key=_branch_rank):
            self._emit(root)
        self._negative_bits()
        for guard in relations:
            self._fail_if(self._relation(guard), guard)
        self.cost = 60.0 + sum(COST_NS[g.kind] for g in guards) + _FETCH_NS * len(self.nodes)
        body = self.lines or ["pass"]
        text = "\n".join(
            [
                f"def {name}({', '.join(self.params.values())}):",
                "    try:",
                *(f"        {line}" for line in body),
                "    except Exception:  # a path that is gone is a guard that fails",
                "        return False",
                "    return True",
                "",
            ]
        )
        return Generated(text, self.namespace, self.cost)

    # --- tree ------------------------------------------------------------------------------

    def _node(self, source: Source) -> _Node:
        node = self.nodes.get(source)
        if node is None:
            node = self.nodes[source] = _Node(source)
            if source.base is None:
                self.roots.append(node)
            else:
                self._node(source.base).children.append(node)
        return node

    def _need(self, guard: Guard) -> None:
        """Make sure that the paths of a relation are fetched."""
        for source in guard.sources():
            if isinstance(source, src.TensorPropertySource) and guard.kind is GuardKind.SHAPE:
                self._node(source.base)
                self.needed.setdefault(source.base, {})[source] = None
            else:
                self._node(source)

    # --- names -----------------------------------------------------------------------------

    def _unique(self, wish: str) -> str:
        name, n = wish, 1
        while name in self.names:
            n += 1
            name = f"{wish}_{n}"
        self.names.add(name)
        return name

    def _constant(self, value: object, wish: str = "") -> str:
        """A name for ``value`` in the checker's globals."""
        known = self.by_id.get(id(value))
        if known is not None:
            return known
        given = wish or getattr(value, "__name__", "") or f"a_{type(value).__name__}"
        name = self._unique(re.sub(r"\W", "_", str(given)).lstrip("_") or "constant")
        self.by_id[id(value)] = name
        self.namespace[name] = value
        return name

    def _literal(self, value: object) -> str:
        return repr(value) if helpers.is_literal(value) else self._constant(value)

    def _helper(self, function: object) -> str:
        return self._constant(function)

    def _variable(self, source: Source) -> str:
        words = re.findall(r"[A-Za-z]\w*|\d+", source.expr)
        keep = 3 if len(words) > 2 and words[-2].isdigit() else 2
        wish = "_".join(w.strip("_") for w in words[-keep:]) or "value"
        return self._unique(wish if not wish[0].isdigit() else f"v_{wish}")

    # --- emission --------------------------------------------------------------------------

    def _fail_if(self, condition: str, guard: Guard) -> None:
        where = guard.source.expr
        note = "; ".join(n for n in (guard.why, guard.user_line) if n)
        comment = f"{where}: {note}" if note else where
        self.lines.append(f"if {condition}: return False  # {' '.join(comment.split())}")

    def _emit(self, node: _Node) -> None:
        self._fetch(node)
        for guard in sorted(node.guards, key=lambda g: COST_NS[g.kind]):
            if isinstance(guard.expected, TensorSpec):
                self._tensor(node.var, guard, guard.expected)
            else:
                self._fail_if(self._condition(node.var, guard), guard)
        for prop in self.needed.get(node.source, ()):
            if prop not in self.properties:
                self.properties[prop] = var = self._unique(f"{node.var}_{prop.prop}_{prop.dim}")
                dim = "" if prop.dim is None else prop.dim
                self.lines.append(f"{var} = {node.var}.{prop.prop}({dim})")
        for child in sorted(node.children, key=_branch_rank):
            self._emit(child)

    def _fetch(self, node: _Node) -> None:
        source = node.source
        if source.base is not None:
            base = self.nodes[source.base].var
            node.var = self._variable(source)
            self.lines.append(f"{node.var} = {self._step(source, base)}")
            return
        text = self._root(source)
        if text.isidentifier():
            node.var = text
        else:
            node.var = self._variable(source)
            self.lines.append(f"{node.var} = {text}")

    def _root(self, source: Source) -> str:
        match source:
            case src.LocalSource():
                return self._bound(source.name, source)
            case src.FunctionSource():
                return self._bound("F", source)
            case src.CellSource():
                if "F" in self.params:
                    return f"{self.params['F']}.__closure__[{source.index}].cell_contents"
                function = self._bound_object("F", source)
                cell = getattr(function, "__closure__")[source.index]  # noqa: B009 - any object
                return f"{self._constant(cell, f'cell_{source.name}')}.cell_contents"
            case src.NamespaceSource():
                return self._namespace_of(source.module, source)
            case src.GlobalSource():
                return f"{self._namespace_of(source.module, source)}[{source.name!r}]"
            case _:
                raise UnguardableSourceError(source=source.expr, params=tuple(self.params))

    def _bound(self, name: str, source: Source) -> str:
        if name in self.params:
            return self.params[name]
        return self._constant(self._bound_object(name, source), name)

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
        return self._constant(spaces[module], f"globals_of_{module}")

    def _step(self, source: Source, base: str) -> str:
        match source:
            case src.AttrSource():
                if source.attr.isidentifier() and not keyword.iskeyword(source.attr):
                    return f"{base}.{source.attr}"
                return f"getattr({base}, {source.attr!r})"
            case src.ItemSource():
                return f"{base}[{self._literal(source.key)}]"
            case src.DictKeySource():
                return f"{self._helper(helpers.next_nth)}({base}, {source.n})"
            case src.IteratorItemSource():
                return f"{self._helper(helpers.remaining)}({base})[{source.n}]"
            case src.TypeSource():
                return f"type({base})"
            case src.CallSource():
                return f"{base}()"
            case src.DefaultsSource():
                table = "__defaults__" if isinstance(source.which, int) else "__kwdefaults__"
                return f"{base}.{table}[{source.which!r}]"
            case src.ClosureSource():
                return f"{base}.__closure__[{source.index}].cell_contents"
            case src.GradSource():
                return f"{base}.grad"
            case src.TensorPropertySource():
                return f"{base}.{source.prop}({'' if source.dim is None else source.dim})"
            case _:
                raise UnguardableSourceError(source=source.expr, params=tuple(self.params))

    # --- one guard -------------------------------------------------------------------------

    def _condition(self, var: str, guard: Guard) -> str:
        """The condition under which the guard fails."""
        expected = guard.expected
        match guard.kind:
            case GuardKind.TYPE:
                return f"type({var}) is not {self._constant(expected)}"
            case GuardKind.ID:
                if expected is None or isinstance(expected, bool):
                    return f"{var} is not {expected}"
                return f"{var} is not {self._constant(expected)}"
            case GuardKind.CONSTANT:
                return self._constant_condition(var, expected)
            case GuardKind.LENGTH:
                kind, length = _pair(expected)
                return f"type({var}) is not {self._constant(kind)} or len({var}) != {length}"
            case GuardKind.DICT_KEYS:
                return self._keys_condition(var, *_pair(expected))
            case GuardKind.DICT_CONTAINS:
                key, present = _pair(expected)
                return f"{self._literal(key)} {'not in' if present else 'in'} {var}"
            case GuardKind.HASATTR:
                name, present = _pair(expected)
                return f"{'not ' if present else ''}hasattr({var}, {name!r})"
            case GuardKind.NOT_NONE:
                return f"{var} is None"
            case GuardKind.NONE:
                return f"{var} is not None"
            case GuardKind.CODE:
                return f"{var}.__code__ is not {self._constant(expected, 'code')}"
            case GuardKind.TUPLE_ITERATOR_LENGTH:
                kind, length = _pair(expected)
                return (
                    f"type({var}) is not {self._constant(kind)} "
                    f"or {var}.__length_hint__() != {length}"
                )
            case GuardKind.WEAKREF_ALIVE:
                return f"{var}() is None"
            case GuardKind.EMPTY:
                return var
            case _:
                raise TypeError(f"{guard.kind} has no condition on one source")

    def _constant_condition(self, var: str, value: object) -> str:
        if value is None or value is Ellipsis or isinstance(value, bool):
            return f"{var} is not {value!r}"
        if type(value) in (int, str, bytes):
            return f"type({var}) is not {type(value).__name__} or {var} != {value!r}"
        if type(value) is float and value != 0.0 and math.isfinite(value):
            return f"type({var}) is not float or {var} != {value!r}"
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return f"{var} is not {self._constant(value, str(value).removeprefix('torch.'))}"
        return f"not {self._helper(helpers.same_constant)}({var}, {self._literal(value)})"

    def _keys_condition(self, var: str, kind: object, keys: object) -> str:
        assert isinstance(keys, tuple), "checked by Guard"
        head = f"type({var}) is not {self._constant(kind)}"
        if not keys:
            return f"{head} or len({var}) != 0"
        if all(type(k) is str for k in keys):
            return f"{head} or tuple({var}) != {keys!r}"
        same_keys = self._helper(helpers.same_keys)
        return f"{head} or not {same_keys}({var}, {self._literal(keys)})"

    def _ambient(self, guard: Guard) -> str:
        assert isinstance(guard.expected, GlobalState), "checked by Guard"
        return self._constant(guard.expected.matcher(), "same_torch_state")

    # --- tensors ---------------------------------------------------------------------------

    def _tensor(self, var: str, guard: Guard, spec: TensorSpec) -> None:
        """One combined comparison, then single sizes and strides where some are symbolic."""
        tests = [
            f"type({var}) is not {self._constant(spec.type)}",
            f"{var}.dtype is not {self._constant(spec.dtype, str(spec.dtype)[6:])}",
        ]
        if spec.device.type == "cpu":
            tests.append(f"not {var}.is_cpu")
        else:
            tests.append(f"{var}.device != {self._constant(spec.device, spec.device.type)}")
        tests.append(f"{'not ' if spec.requires_grad else ''}{var}.requires_grad")
        static = None not in spec.size
        if static:
            tests.append(f"{var}.shape != {spec.size!r}")
        strides = spec.stride
        # Sparse tensors report strides of 0 and opaque CPU ones report any: where the strides do
        # not tell the layouts apart, the layout has to be read.
        if spec.device.type == "cpu" or not strides or set(strides) <= {0, None}:
            tests.append(f"{var}.layout is not {self._constant(spec.layout, str(spec.layout)[6:])}")
        if static and strides and None not in strides:
            tests.append(self._stride_test(var, spec))
        if spec.dtype.is_complex:
            tests.append(f"{'not ' if spec.conj else ''}{var}.is_conj()")
        if spec.neg:
            tests.append(f"not {var}.is_neg()")
        elif spec.dtype.is_floating_point or spec.dtype.is_complex:
            self.float_tensors.append(var)
        self._fail_if(" or ".join(tests), guard)
        if not static:
            self._unpack(var, guard, spec.size, "size", f"{var}.shape")
        if strides and None in (*spec.size, *strides):
            self._unpack(var, guard, strides, "stride", f"{var}.stride()")

    def _stride_test(self, var: str, spec: TensorSpec) -> str:
        assert spec.stride is not None
        # For sizes above 1 "contiguous" and "has these strides" are the same, and cheaper to ask.
        if all(s is not None and s > 1 for s in spec.size) and spec.stride == _contiguous(spec):
            return f"not {var}.is_contiguous()"
        return f"{var}.stride() != {spec.stride!r}"

    def _unpack(
        self, var: str, guard: Guard, expected: tuple[int | None, ...], prop: str, text: str
    ) -> None:
        """Take sizes (or strides) apart, compare the static ones, keep the rest for relations."""
        assert prop in ("size", "stride")
        targets: list[str] = []
        tests: list[str] = []
        for dim, value in enumerate(expected):
            name = self._unique(f"{var}_{prop}{dim}")
            targets.append(name)
            source = src.TensorPropertySource(
                guard.source, "size" if prop == "size" else "stride", dim
            )
            self.properties[source] = name
            if value is not None:
                tests.append(f"{name} != {value}")
        self.lines.append(f"{', '.join(targets)}{',' * (len(targets) == 1)} = {text}")
        if tests:
            self._fail_if(" or ".join(tests), guard)

    def _negative_bits(self) -> None:
        """No lazily negated tensor among those that were not: one pass over all of them."""
        tensors = self.float_tensors
        if not tensors:
            return
        if len(tensors) <= 2:
            condition = " or ".join(f"{t}.is_neg()" for t in tensors)
        else:
            condition = f"any(map({self._constant(_is_neg, 'is_neg')}, ({', '.join(tensors)})))"
        self.lines.append(f"if {condition}: return False  # lazily negated")

    # --- relations -------------------------------------------------------------------------

    def _relation(self, guard: Guard) -> str:
        match guard.expected:
            case Source() as other:
                return f"{self.nodes[guard.source].var} is not {self.nodes[other].var}"
            case ShapeRelation() as relation:
                return self._shape(relation)
            case tuple() as others:
                return self._distinct([self.nodes[s].var for s in (guard.source, *others)])
            case _:
                raise TypeError(f"{guard.kind} is no relation")

    def _distinct(self, names: list[str]) -> str:
        if len(names) <= 3:
            pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
            return " or ".join(f"{a} is {b}" for a, b in pairs) or "False"
        return f"len({{*map(id, ({', '.join(names)}))}}) != {len(names)}"

    def _shape(self, relation: ShapeRelation) -> str:
        names = {
            symbol: self.properties[source]
            if isinstance(source, src.TensorPropertySource)
            else self.nodes[source].var
            for symbol, source in relation.bindings
        }
        text = relation.condition.text(names)
        for function in FUNCTIONS:
            if f"{function}(" in text and not hasattr(builtins, function):
                self.namespace[function] = FUNCTIONS[function]
        return f"not ({text})"


def _pair(value: object) -> tuple[object, object]:
    assert isinstance(value, tuple), "checked by Guard"
    return value[0], value[1]


def _contiguous(spec: TensorSpec) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(spec.size):
        strides.append(step)
        step *= size or 1
    return tuple(reversed(strides))


def _branch_rank(node: _Node) -> tuple[int, float]:
    """Branches with an argument-like leaf first (they change between calls), then the cheap."""
    changing = any(g.kind in (GuardKind.TENSOR, GuardKind.CONSTANT) for g in node.guards)
    return (0 if changing else 1, node.cost())
