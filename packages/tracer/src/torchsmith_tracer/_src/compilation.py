"""``Compilation``: the state of one compilation of one entry function, all stages together.

It makes the stages and hands them what they use; it has no logic of its own beyond checkpoint and
rollback of all of them together (graph with its shape environment, guards, journal), which is what
makes graph breaks linear, and ``close``, after which nothing of the user's is held.
"""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING

from torchsmith_guards import FakeMode, GuardSet, ShapeEnv

from torchsmith_tracer._src.build.builder import Builder
from torchsmith_tracer._src.effects.journal import Journal
from torchsmith_tracer._src.facts.world import World
from torchsmith_tracer._src.graph.output import OutputGraph
from torchsmith_tracer._src.interp.interpreter import Interpreter
from torchsmith_tracer._src.values.abstract.layer import ObjectLayer

if TYPE_CHECKING:
    from torchsmith_tracer._src.build.dynamic import FrameState
    from torchsmith_tracer._src.frames.frame import Frame
    from torchsmith_tracer._src.settings import Settings


class Compilation:
    """See ``Trace``, as which values know it."""

    def __init__(
        self,
        settings: Settings,
        frame_state: FrameState | None = None,
        *,
        keep_history: bool = False,
        native_nodes: bool = False,
        takes_locks: bool = True,
        says_compiling: bool = True,
    ) -> None:
        self.settings = settings
        self.says_compiling = says_compiling
        self.asked_compiling = False
        self.native_nodes = native_nodes
        self.graph = OutputGraph(FakeMode(ShapeEnv()), keep_history=keep_history)
        self.guards = GuardSet()
        self.journal = Journal(takes_locks=takes_locks)
        self.frames: list[Frame] = []
        self.visited: dict[int, tuple[CodeType, set[int]]] | None = None
        self.interp = ObjectLayer(self)
        self.loop = Interpreter(self)
        self.builder = Builder(self, frame_state)
        self.world = World(self)
        self.graph.attach(self)
        shapes = self.graph.shape_env
        assert shapes is not None
        shapes.history = self.builder.frame_state.history
        self.logs = self.graph.log, shapes.log, self.guards.log, self.journal.log

    def checkpoint(self) -> tuple[object, ...]:
        """Marks of all stages, for ``rollback``: how long their logs are."""
        graph, shapes, guards, journal = self.logs
        return len(graph), len(shapes), len(guards), len(journal)

    def rollback(self, marks: tuple[object, ...]) -> None:
        """Bring all stages back to ``marks``."""
        graph, shapes, guards, journal = marks
        self.journal.rollback(journal)  # type: ignore[arg-type]
        self.guards.rollback(guards)  # type: ignore[arg-type]
        self.world.forget()
        self.interp.forget()
        self.graph.rollback((graph, shapes))  # type: ignore[arg-type]

    def close(self) -> None:
        """The last step of a compile: let go of everything. What the compiled code needs (guards,
        body, graph) has been taken out; argument objects, values and undo logs die here, also where
        the graph's fake tensors still lead to the shape environment."""
        env, fake = self.graph.shape_env, self.graph.fake
        if env is not None:
            env.close()
        fake.close()
        self.frames.clear()
        self.loop.abandoned.close()
        del self.logs
        self.builder.close()
        for part in (self.graph, self.journal, self.world, self.loop, self.interp):
            vars(part).clear()
