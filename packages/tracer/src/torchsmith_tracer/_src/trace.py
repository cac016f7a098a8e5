"""``Trace``: what values know of the compilation that they belong to.

Values are handed the trace by whoever calls them; they import neither the interpreter nor the graph
nor the builder. ``compilation.py`` has the object that is behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import fx
    from torchsmith_guards import FakeMode, GuardKind, GuardSet, ShapeEnv, Source

    from torchsmith_tracer._src.effects.journal import Journal
    from torchsmith_tracer._src.emitter import Emitter
    from torchsmith_tracer._src.facts.world import World
    from torchsmith_tracer._src.frames.frame import Frame
    from torchsmith_tracer._src.settings import Settings
    from torchsmith_tracer._src.values.abstract.layer import ObjectLayer
    from torchsmith_tracer._src.values.base import Value
    from torchsmith_tracer._src.values.generators import GeneratorValue
    from torchsmith_tracer._src.values.switches import Switch
    from torchsmith_tracer._src.values.tensor import TensorValue


class OpenContext(Protocol):
    """What ``Graph.contexts`` holds: a value that can be closed inside the graph."""

    def close_in_graph(self, graph: Graph) -> None:
        """Append the nodes that leave the context."""

    def release(self) -> None:
        """Undo the real change of state."""

    def reenter(self, cg: Emitter) -> None:
        """Emit code that enters the real context manager."""


@dataclass(frozen=True, slots=True)
class Outlined:
    """A closed body.

    Attributes:
        module: takes the body's inputs, then the operands; gives a tuple of the results.
        operands: nodes of the outer graph that the body used.
        fakes: fake results.
    """

    module: fx.GraphModule
    operands: tuple[fx.Node, ...]
    fakes: tuple[object, ...]


class Body(Protocol):
    """A part of the graph that is moved out when it is closed."""

    def input(self, fake: torch.Tensor) -> Value: ...
    def nodes(self) -> list[fx.Node]: ...
    def close(self, results: Sequence[Value]) -> Outlined: ...


class Graph(Protocol):
    """What values append to the graph; see ``OutputGraph``."""

    contexts: list[OpenContext]
    turned: list[Switch]
    hooked: bool
    watched: dict[fx.Node, Callable[..., None]]
    mutated: set[int]
    counted: set[int]
    inference: set[int]
    written: list[int]
    mapped: int
    op_count: int
    transforms: int
    replaced: list[tuple[TensorValue, fx.Node]]
    fake: FakeMode
    graph: fx.Graph
    shape_env: ShapeEnv | None

    def base_of(self, fake: torch.Tensor) -> tuple[object, Source] | None: ...
    def call_function(
        self,
        target: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object] | None = None,
    ) -> Value: ...
    def call_method(
        self, name: str, args: Sequence[object], kwargs: Mapping[str, object] | None = None
    ) -> Value: ...
    def call_nodes(self, target: Callable[..., object], args: tuple[object, ...]) -> Value: ...
    def check_later(self, condition: Any) -> None: ...
    def add_call(
        self,
        op: str,
        target: Callable[..., object] | str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        fake: object,
    ) -> fx.Node: ...
    def add_input(self, source: Source, fake: object, example: object) -> fx.Node: ...
    def add_module(self, module: object) -> fx.Node: ...
    def open_body(self) -> Body: ...
    def mapping(self) -> AbstractContextManager[None]: ...
    def wrap_result(self, node: fx.Node, fake: object) -> Value: ...
    def known_truth(self, node: fx.Node) -> bool | None: ...
    def known_number(self, node: fx.Node) -> int | float | None: ...
    def known_values(self, node: fx.Node) -> torch.Tensor | None: ...
    def record(self, undo: Callable[[], None]) -> None: ...
    def need_history(self) -> None: ...
    def argument(self, value: object) -> object: ...
    def note_attributes(self, sources: Iterable[Source | None]) -> None: ...
    def note_data(self, fake: torch.Tensor, before: torch.Tensor) -> None: ...
    def emit_asserts(self) -> None: ...
    def append_assert(self, condition: fx.Node, message: str) -> None: ...
    def enter_context(self, context: OpenContext) -> None: ...
    def exit_context(self, context: OpenContext) -> None: ...


class Builder(Protocol):
    """Values of objects that exist outside of the trace; see ``build/builder.py``."""

    leaves: dict[int, TensorValue]

    def note_leaf(self, value: TensorValue) -> None: ...
    def wrap(self, obj: object, source: Source) -> Value: ...
    def wrap_new(self, obj: object) -> Value: ...
    def known(self, obj: object) -> Value | None: ...
    def identified(self, value: Value) -> None: ...
    def distinct(self, a: Value, b: Value) -> None: ...
    def unroll(self, what: str, key: str, length: int) -> None: ...
    def guard(self, source: Source, kind: GuardKind, expected: object, why: str) -> None: ...


class FrameLoop(Protocol):
    """Running Python code; see ``Interpreter``."""

    def run(self, frame: Frame) -> Value: ...
    def resume_generator(
        self, gen: GeneratorValue, frame: Frame, value: Value, exc: Value | None
    ) -> tuple[Value, bool]: ...


class Trace(Protocol):
    """Shared by all frames inlined into one compiled body.

    Attributes:
        graph: the fx graph under construction.
        guards: facts about the inputs that the trace relied on.
        journal: side effects so far.
        settings: frozen options of this compile.
        builder: makes values from real objects and their sources.
        world: reads what exists outside of the trace, with guards.
        interp: CPython's abstract objects layer.
        loop: runs frames.
        frames: innermost last.
        native_nodes: whether the backend runs nodes that only this process can run.
        says_compiling: what is said to a program that asks whether it is being compiled.
        asked_compiling: whether one has asked, and may have taken another path than eagerly.
        visited: where somebody wants to know, the instructions that were run, by their code.
        logs: what each stage has logged; ``checkpoint`` is how long they are.
    """

    guards: GuardSet
    journal: Journal
    settings: Settings
    world: World
    interp: ObjectLayer
    frames: list[Frame]
    visited: dict[int, tuple[CodeType, set[int]]] | None
    native_nodes: bool
    says_compiling: bool
    asked_compiling: bool

    @property
    def logs(self) -> tuple[Sized, Sized, Sized, Sized]: ...
    @property
    def graph(self) -> Graph: ...
    @property
    def builder(self) -> Builder: ...
    @property
    def loop(self) -> FrameLoop: ...
    def checkpoint(self) -> tuple[object, ...]:
        """Marks of all stages, for ``rollback``."""

    def rollback(self, marks: tuple[object, ...]) -> None:
        """Bring all stages back to ``marks``."""
