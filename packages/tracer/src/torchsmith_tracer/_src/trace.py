"""``Trace``: the state that one compilation of one entry function shares.

It bundles the stages; it has no logic of its own beyond checkpoint and rollback of all of them
together (graph with its shape environment, guards, journal), which is what makes graph breaks
linear, and ``close``, after which nothing of the user's is held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchsmith_guards import GuardSet

    from torchsmith_tracer._src.build.builder import Builder
    from torchsmith_tracer._src.effects.journal import Journal
    from torchsmith_tracer._src.facts.world import World
    from torchsmith_tracer._src.frames.frame import Frame
    from torchsmith_tracer._src.graph.output import OutputGraph
    from torchsmith_tracer._src.interp.interpreter import Interpreter
    from torchsmith_tracer._src.settings import Settings


@dataclass(slots=True)
class Trace:
    """Shared by all frames inlined into one compiled body.

    ``builder``, ``world`` and ``interp`` need the trace themselves and are set right after it is
    made.

    Attributes:
        graph: the fx graph under construction, its inputs and fake values.
        guards: facts about the inputs that the trace relied on.
        journal: side effects so far.
        settings: frozen options of this compile.
        builder: makes values from real objects and their sources.
        world: reads what exists outside of the trace, with guards.
        interp: runs frames; ``interp.call_function(fn, args, kwargs)`` inlines.
        frames: innermost last.
    """

    graph: OutputGraph
    guards: GuardSet
    journal: Journal
    settings: Settings
    builder: Builder = field(init=False)
    world: World = field(init=False)
    interp: Interpreter = field(init=False)
    frames: list[Frame] = field(default_factory=list)

    def checkpoint(self) -> tuple[object, ...]:
        """Marks of all stages, for ``rollback``."""
        return (self.graph.checkpoint(), self.guards.checkpoint(), self.journal.checkpoint())

    def rollback(self, marks: tuple[object, ...]) -> None:
        """Bring all stages back to ``marks``."""
        graph, guards, journal = marks
        self.journal.rollback(journal)  # type: ignore[arg-type]
        self.guards.rollback(guards)  # type: ignore[arg-type]
        self.world.forget()
        self.interp.forget()
        self.graph.rollback(graph)  # type: ignore[arg-type]

    def close(self) -> None:
        """The last step of a compile: let go of everything. What the compiled code needs (guards,
        body, graph) has been taken out; argument objects, values and undo logs die here, also where
        the graph's fake tensors still lead to the shape environment."""
        env, fake = self.graph.shape_env, self.graph.fake
        if env is not None:
            env.close()
        fake.close()
        self.frames.clear()
        for part in (self.graph, self.journal, self.builder, self.world, self.interp):
            vars(part).clear()
