"""``Watcher``: when a check may be answered by "nothing has changed", and how it comes to that.

A checker starts with its generated function. Once that has passed a few times, the objects are
surveyed and the function is exchanged for one that checks what the survey does not cover, asks
``Plan.unchanged`` about the rest, and calls the first function when that says no. What keeps
changing is learned and left to the generated code; where there is nothing to gain the first
function stays.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from torchsmith_guards._src.guards.guard import Guard, GuardKind
from torchsmith_guards._src.guards.tree import estimated_ns
from torchsmith_guards._src.sources.sources import LocalSource, NamespaceSource, Source
from torchsmith_guards._src.unchanged import native
from torchsmith_guards._src.unchanged.survey import Survey

# Asking costs about as much as this many nanoseconds of generated checks, and as this for each
# object that is asked about.
_ASKING_NS = 1000.0
_ANCHOR_NS = 60.0
_MOST_PLANS = 8  # how often a checker is rewritten because something else keeps changing
_MOST_OBJECTS = 512  # how many modules that share a checker are remembered


@dataclass(slots=True, eq=False)
class Plan:
    """How a checker is split.

    Attributes:
        covered: guards that need no code while nothing has changed.
        anchors: paths of the objects that ``unchanged`` is asked about, in this order.
        watches: the remembered states, by the address of the first of their objects: references
            to the objects, and what the survey of them found.
    """

    covered: frozenset[Guard]
    anchors: tuple[Source, ...]
    watches: dict[int, tuple[tuple[weakref.ref[object], ...], Survey]] = field(default_factory=dict)

    def unchanged(self, *anchors: object) -> bool:
        """True when the state of the objects is the one that was remembered for them."""
        known = self.watches.get(id(anchors[0]) if anchors else 0)
        if known is None or any(map(operator.is_not, map(operator.call, known[0]), anchors)):
            return False
        return known[1].table.holds()

    def remember(self, objects: Sequence[object], found: Survey) -> None:
        """Remember a state; it goes when one of ``objects`` dies."""
        watches, home = self.watches, id(objects[0]) if objects else 0
        if home in watches or len(watches) < _MOST_OBJECTS:
            refs = tuple(weakref.ref(obj, lambda _: watches.pop(home, None)) for obj in objects)
            watches[home] = refs, found


@dataclass(slots=True, eq=False)
class Watcher:
    """See the module's docstring.

    Attributes:
        guards: the guards of the checker.
        params: its parameters.
        bind: its other roots.
        full: the first function.
        install: makes a plan (or None: the first function, for good) the checker's function.
    """

    guards: Sequence[Guard]
    params: tuple[str, ...]
    bind: Mapping[str, object]
    full: Callable[..., bool]
    install: Callable[[Plan | None], None]
    plan: Plan | None = None
    # By object: passes since its last survey, and for how many to wait, more after each survey.
    _patience: dict[int, tuple[int, int]] = field(default_factory=dict)
    _changed: dict[object, int] = field(default_factory=dict)
    _volatile: frozenset[object] = frozenset()
    _plans: int = 0

    def check(self, *args: object) -> bool:
        """Check in full, and remember the state if it is time to."""
        if not self.full(*args):
            return False
        library = native.library()
        if library is None:
            if native.unavailable():
                self._give_up()
        elif self._due(args):
            try:
                self._remember(library, args)
            except Exception:  # noqa: BLE001 - cannot be surveyed, but was checked in full
                self._give_up()
        return True

    def _due(self, args: tuple[object, ...]) -> bool:
        """True when it is time for a survey of these objects."""
        key, plan = 0, self.plan
        if plan is not None and plan.anchors and isinstance(plan.anchors[0], LocalSource):
            anchor = args[self.params.index(plan.anchors[0].name)]
            key = id(anchor) if isinstance(anchor, nn.Module) else 0
        if len(self._patience) >= _MOST_OBJECTS:
            self._patience.clear()
        passes, wait = self._patience.get(key, (0, 2))
        due = passes + 1 >= wait
        self._patience[key] = (0, min(2 * wait, 1 << 14)) if due else (passes + 1, wait)
        return due

    def _remember(self, library: native.Library, args: tuple[object, ...]) -> None:
        from torchsmith_guards._src.unchanged.survey import survey  # fails without dict stamps

        roots = {**self.bind, **dict(zip(self.params, args, strict=True))}
        found, objects = survey(library, self.guards, self.params, roots, self._volatile)
        if self._learn(objects, found):
            found, objects = survey(library, self.guards, self.params, roots, self._volatile)
        plan = self.plan
        anchors = tuple(found.anchors)
        if plan is None or anchors != plan.anchors or not plan.covered <= found.covered:
            saved = sum(map(estimated_ns, found.covered))
            self._plans += 1
            if saved < _ASKING_NS + _ANCHOR_NS * len(anchors) or self._plans > _MOST_PLANS:
                self._give_up()
                return
            plan = Plan(frozenset(found.covered), anchors)
            self.install(plan)
            self.plan = plan
        # Nothing may have changed between the survey and a check in full.
        if self.full(*args) and found.table.holds():
            found.covered.clear()
            plan.remember(objects, found)

    def _learn(self, objects: Sequence[object], found: Survey) -> bool:
        """Note which dicts have changed, and which arguments are not those that are remembered;
        True when some are now held to change all the time."""
        plan, now = self.plan, found.stamps
        if plan is None or plan.anchors != tuple(found.anchors):
            return False
        changed: set[object] = {
            anchor
            for place, (anchor, obj) in enumerate(zip(plan.anchors, objects, strict=True))
            if not isinstance(obj, nn.Module)  # those that share a checker take turns
            and all(refs[place]() is not obj for refs, _ in plan.watches.values())
        }
        known = plan.watches.get(id(objects[0]) if objects else 0)
        if known is not None:
            changed |= {k for k, stamp in known[1].stamps.items() if now.get(k, stamp) != stamp}
        for key in changed:
            self._changed[key] = self._changed.get(key, 0) + 1
        often = {k for k in changed if self._changed[k] > 1 or isinstance(k, NamespaceSource)}
        self._volatile |= often
        return bool(often)

    def _give_up(self) -> None:
        self.plan = None
        self.install(None)


def worth_watching(guards: Sequence[Guard]) -> bool:
    """True for sets that may be checked more cheaply by asking whether anything has changed."""
    costs = (estimated_ns(g) for g in guards if g.kind is not GuardKind.GLOBAL_STATE)
    return not native.unavailable() and sum(costs) > 2 * _ASKING_NS
