"""The sources of a guard set as a tree by path, and which of its branches are equal.

Equal branches (the blocks of a model: the same steps, the same guards, the same expected values)
get the same form number, so that the generator writes their checks once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from torchsmith_guards._src.guards.guard import Guard, GuardKind
from torchsmith_guards._src.sources.sources import Source

# Nanoseconds of one check on the machine it was written on: for ordering and estimates only.
COST_NS: dict[GuardKind, float] = {
    GuardKind.NONE: 5,
    GuardKind.ID: 8,
    GuardKind.TYPE: 10,
    GuardKind.CONSTANT: 20,
    GuardKind.EMPTY: 10,
    GuardKind.WRITABLE: 25,
    GuardKind.CODE: 25,
    GuardKind.LENGTH: 35,
    GuardKind.DICT_CONTAINS: 25,
    GuardKind.HASATTR: 60,
    GuardKind.DICT_KEYS: 120,
    GuardKind.TENSOR: 320,
    GuardKind.GLOBAL_STATE: 300,
    GuardKind.SAME_OBJECT: 5,
    GuardKind.NOT_SAME: 40,
    GuardKind.DISJOINT: 1000,
    GuardKind.SHAPE: 40,
}
FETCH_NS = 20.0


def estimated_ns(guard: Guard) -> float:
    """Rough cost of the check of one guard on its own, in nanoseconds."""
    return COST_NS[guard.kind] + FETCH_NS


# Calling a function for less than this costs more than it saves.
_WORTH_SHARING_NS = 300.0
_NUMBERS = {bool, int, float}
_CHANGING = (GuardKind.TENSOR, GuardKind.CONSTANT)


@dataclass(slots=True, eq=False)
class Node:
    """One path of the tree.

    Attributes:
        source: the path; of the first of several equal branches.
        step: what tells it from its siblings.
        children: the paths one step further; in the order of their checks once sorted.
        guards: the guards on the object at the path, cheapest first once sorted.
        cost: estimated nanoseconds of the whole branch.
        form: the same number for equal branches.
    """

    source: Source
    step: Hashable
    children: dict[Hashable, Node] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    cost: float = 0.0
    form: int = -1

    @property
    def expected_type(self) -> type | None:
        """The exact class that a guard of this node demands."""
        for guard in self.guards:
            if guard.kind is GuardKind.TYPE and isinstance(guard.expected, type):
                return guard.expected
        return None


class Tree:
    """The paths of a guard set."""

    def __init__(self) -> None:
        self.nodes: dict[Source, Node] = {}
        self.roots: list[Node] = []
        self._forms: dict[Hashable, int] = {}
        self._texts: dict[int, int] = {}

    def node(self, source: Source) -> Node:
        """The node of ``source``, made with all nodes on the way to it."""
        found = self.nodes.get(source)
        if found is None:
            base = source.base
            key = source.step_key()
            found = self.nodes[source] = Node(source, key)
            if base is None:
                self.roots.append(found)
            else:
                self.node(base).children[key] = found
        return found

    def finish(self, pinned: Iterable[Source]) -> None:
        """Sort guards and children and number the forms.

        Args:
            pinned: paths that relations take numbers from; branches with one are equal to no other.
        """
        kept: set[Node] = set()
        for source in pinned:
            here: Source | None = source
            while here is not None:
                kept.add(self.node(here))
                here = here.base
        for root in self.roots:
            self._number(root, kept)
        seen: set[int] = set()
        for root in self.roots:
            self._texts[root.form] = self._texts.get(root.form, 0) + 1
            self._count(root, seen)

    def _number(self, node: Node, pinned: set[Node]) -> None:
        for child in node.children.values():
            self._number(child, pinned)
        if len(node.guards) > 1:  # most have one
            constants = {type(g.expected) for g in node.guards if g.kind is GuardKind.CONSTANT}
            if checked := constants & _NUMBERS:  # the check of a number looks at its class, too
                node.guards = [
                    g
                    for g in node.guards
                    if g.kind is not GuardKind.TYPE or g.expected not in checked
                ]
            node.guards.sort(key=lambda g: COST_NS[g.kind])
        own = sum([COST_NS[g.kind] for g in node.guards])
        node.cost = FETCH_NS + own + sum([c.cost for c in node.children.values()])
        ordered = sorted(node.children.values(), key=branch_rank)
        node.children = {c.step: c for c in ordered}
        facts = tuple(g.fact() for g in node.guards)
        shape: Hashable = (facts, tuple((c.step, c.form) for c in ordered))
        if node in pinned:
            shape = node
        node.form = self._forms.setdefault(shape, len(self._forms))

    def _count(self, node: Node, seen: set[int]) -> None:
        """How often each form occurs in the text when every form is written once."""
        if node.form in seen:
            return
        seen.add(node.form)
        for child in node.children.values():
            self._texts[child.form] = self._texts.get(child.form, 0) + 1
            self._count(child, seen)

    def shared(self, node: Node) -> bool:
        """True when the branch is better checked by a function of its own."""
        worth = bool(node.children) and node.cost >= _WORTH_SHARING_NS
        return worth and self._texts[node.form] > 1


def branch_rank(node: Node) -> tuple[int, float]:
    """Branches with an argument-like leaf first (they change between calls), then the cheap."""
    for guard in node.guards:
        if guard.kind in _CHANGING:
            return (0, node.cost)
    return (1, node.cost)


def runs(nodes: Iterable[Node], same: Callable[[Node], Hashable]) -> Iterator[list[Node]]:
    """Neighbours for which ``same`` gives equal results other than None, else single nodes."""
    group: list[Node] = []
    last: Hashable = None
    for node in nodes:
        key = same(node)
        if group and (key is None or key != last):
            yield group
            group = []
        group.append(node)
        last = key
    if group:
        yield group
