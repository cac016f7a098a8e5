"""``OutputGraph``: the fx graph of one trace, its inputs, and the fake value of every node.

Each value-producing node carries ``meta["example_value"]`` (its fake result), call nodes also
``meta["stack_trace"]`` (the user's frames) and ``meta["nn_module_stack"]``. Everything that
changes the graph is recorded in an undo log, so that a graph break can roll back.

``contexts`` are context managers that traced code has entered and not left, outermost first, and
permanent changes of torch's ambient state. ``finish`` leaves them inside the graph, so the graph is
neutral; generated code enters them again after the graph (``ctx.reenter(cg)``), in this order.
"""

from __future__ import annotations

import functools
import keyword
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torchsmith_guards import Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.graph import asserts, cleanup, known_range, known_values, provenance
from torchsmith_tracer._src.graph.current_device import relies_on_current_device
from torchsmith_tracer._src.graph.fakes import FakeRunner, Given, collect_tensors, in_place
from torchsmith_tracer._src.graph.may_raise import (
    Operation,
    draws,
    fills,
    may_raise,
    overlaps,
    refuses_types,
    relies_on_data,
    stays,
)
from torchsmith_tracer._src.graph.wrap_result import wrap_result
from torchsmith_tracer._src.torch_private import (
    CapturedGraph,
    assert_async,
    current_device,
    map_nodes,
    node_label,
    set_grad_enabled,
    storage_id,
)
from torchsmith_tracer._src.values import function_modes
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.containers import SequenceValue
from torchsmith_tracer._src.values.numpy_scalars import holds_number
from torchsmith_tracer._src.values.tensor import TensorValue

if TYPE_CHECKING:
    from torchsmith_guards import FakeMode

    from torchsmith_tracer._src.compilation import Compilation
    from torchsmith_tracer._src.frames.frame import Frame
    from torchsmith_tracer._src.graph.outline import Body
    from torchsmith_tracer._src.trace import OpenContext
    from torchsmith_tracer._src.values.switches import Switch

Mark = tuple[int, int]
Undo = Callable[[], object]


@dataclass(slots=True, eq=False)
class GraphInput:
    """One placeholder.

    Attributes:
        source: where generated code finds the object.
        node: the placeholder.
        example: the real object: tensor, int or float.
        fake: its fake tensor or symbolic number.
    """

    source: Source
    node: fx.Node
    example: object
    fake: object


# Operators that are methods of tensors, by function: the names between the underscores.
_OPERATORS: dict[Callable[..., object], str] = {
    fn: fn.__name__.strip("_")
    for fn in vars(operator).values()
    if hasattr(torch.Tensor, f"__{getattr(fn, '__name__', '').strip('_')}__") and callable(fn)
}


class OutputGraph:
    """See the module's docstring.

    Attributes:
        fake: makes fake tensors; ``fake.mode`` is active while operators run on them.
        graph: the fx graph.
        inputs: placeholders in order.
        contexts: open context managers, outermost first.
        turned: settings of torch's that traced code has changed, perhaps back.
        hooked: whether a backward pass through the graph's tensors runs Python code.
        modules: graphs and functions that nodes of this one call, by attribute name.
        mutated: storages that traced code changes in place, by their identity.
        counted: those of them that it changes outside of inference mode.
        inference: storages of inference tensors, which must not be changed there.
        written: the storage of each such change.
        replaced: tensors that were changed in place, each with its node until then.
        at_risk: those of them that are changed before an operator that may fail when it runs.
        attributes: inputs whose ``.grad`` or ``.data`` the graph sets.
        mapped: how many ``torch.vmap`` are around what is traced.
        transforms: how many functions of ``torch.func`` are, ``torch.vmap`` included.
        draws, may_fail: whether random numbers are taken, and whether an operator may fail.
        op_count: call nodes so far.
        tx: the trace that this graph belongs to, once it is attached to one.
        need_history: see ``FakeRunner``.
        stays: see ``may_raise.py``.
    """

    tx: Compilation
    stays = staticmethod(stays)
    known_truth = known_range.truth
    known_number = known_range.number
    known_values = known_values.values

    def __init__(self, fake: FakeMode, *, keep_history: bool = False) -> None:
        self.fake = fake
        self.shape_env = fake.shape_env
        self.graph = fx.Graph()
        self.inputs: list[GraphInput] = []
        self.contexts: list[OpenContext] = []
        self.turned: list[Switch] = []
        self.hooked = False
        self.watched: dict[fx.Node, Callable[..., None]] = {}  # by what tells that hooks follow
        self.mutated: set[int] = set()
        self.counted: set[int] = set()
        self.inference: set[int] = set()
        self.written: list[int] = []
        self.replaced: list[tuple[TensorValue, fx.Node]] = []
        self.at_risk: set[int] = set()
        self._operations: dict[Callable[..., object] | str, Operation] = {}
        self._labels: dict[Callable[..., object] | str, str] = {}  # what fx calls their nodes
        self.attributes: dict[Source, None] = {}
        self._first: dict[int, tuple[object, object]] = {}  # fakes, what they were at first
        self.draws = self.may_fail = False
        self.mapped = self.transforms = 0
        self.modules: dict[str, object] = {}
        self.last_module_stack: tuple[Frame, int, dict[str, tuple[str, type]]] | None = None
        self.lines: dict[tuple[str, int, str], str] = {}  # texts of ``provenance.stack_trace``
        self.op_count = 0
        self._entry_grad_mode = torch.is_grad_enabled()
        self.log: list[Undo] = []
        self._names: set[str] = {"self"}  # of the method that the graph becomes
        self._runner = FakeRunner(fake, keep_history=keep_history)
        self.need_history = self._runner.need_history
        self._insert_before: fx.Node | None = None  # first node that is no placeholder
        self._restored = False
        self._asserted = 0  # how many of the environment's runtime asserts the graph has
        self._checks: tuple[fx.Node, ...] = ()  # tensors that are to be true

    def attach(self, tx: Compilation) -> None:
        """Connect with the trace that this graph belongs to."""
        self.tx = tx
        env = self.shape_env
        if env is not None:
            env.where = lambda: provenance.user_line(tx)
            env.allow_scalar_outputs = tx.settings.capture_scalar_outputs
            env.allow_dynamic_output_shape_ops = tx.settings.capture_dynamic_output_shape_ops

    # --- checkpoints -----------------------------------------------------------------------
    def rollback(self, mark: Mark) -> None:
        """Undo everything done since ``mark``, newest first."""
        count, shapes = mark
        undo = self.log
        while len(undo) > count:
            undo.pop()()
        if self.shape_env is not None:
            self.shape_env.rollback(shapes)
            self._asserted = min(self._asserted, len(self.shape_env.runtime_asserts))

    def record(self, undo: Undo) -> None:
        """Note how to undo a change of state that must roll back with the graph (memo tables of
        the builder, fakes, contexts)."""
        self.log.append(undo)

    # --- inputs ----------------------------------------------------------------------------
    def add_input(self, source: Source, fake: object, example: object) -> fx.Node:
        """A new placeholder, after the existing ones."""
        name = self._fresh(_input_name(source))
        with self.graph.inserting_before(self._first_call()):
            node = self.graph.placeholder(name)
        # fx may have had to choose another name: as a parameter it must be the same, since the
        # generated code assigns the one to the other where they differ.
        node.target = node.name
        node.meta["example_value"] = fake
        entry = GraphInput(source, node, example, fake)
        self.inputs.append(entry)

        def undo() -> None:
            self.inputs.remove(entry)
            self.graph.erase_node(node)

        self.log.append(undo)
        return node

    def note_data(self, fake: torch.Tensor, before: torch.Tensor) -> None:
        """``fake`` is about to get data of another layout or type than ``before``, which an input
        goes on being described by."""
        if id(fake) not in self._first:
            self._first[id(fake)] = fake, before.requires_grad_(fake.requires_grad)
            self.log.append(functools.partial(self._first.pop, id(fake)))

    def example_inputs(self) -> list[object]:
        """The real objects for the placeholders, in order: what a backend is given."""
        return [entry.example for entry in self.inputs]

    # --- operators -------------------------------------------------------------------------
    def call_function(
        self,
        target: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object] | None = None,
    ) -> Value:
        """Append ``target(*args, **kwargs)``; arguments are values, constants or nests of them.

        Raises:
            Unsupported: the operator needs real data, or fails on these arguments (running it
                natively then raises the user's exception).
        """
        return self._call("call_function", target, args, kwargs or {})

    def call_method(
        self, name: str, args: Sequence[object], kwargs: Mapping[str, object] | None = None
    ) -> Value:
        """Append ``args[0].name(*args[1:], **kwargs)``."""
        return self._call("call_method", name, args, kwargs or {})

    def _call(
        self,
        op: str,
        target: Callable[..., object] | str,
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Value:
        if self.contexts and function_modes.watching(self.tx):
            raise Unsupported("opaque-call", what="an operator that a torch-function mode sees")
        name, env = getattr(target, "__name__", target), self.shape_env
        if name in _DTYPE_OF_DATA and holds_number(args):
            raise Unsupported("not-a-graph-argument", what="a number of NumPy with its own dtype")
        if isinstance(target, str):
            self.tx.world.tensor_entry(target)
        elif target in _OPERATORS:
            first = args[0].python_type() if isinstance(args[0], Value) else object
            reflected = "" if issubclass(first, torch.Tensor) else "r"
            self.tx.world.tensor_entry(f"__{reflected}{_OPERATORS[target]}__")
        node_args = tuple([self.argument(a) for a in args])
        node_kwargs: dict[str, object] = {}
        if kwargs:
            node_kwargs = {k: self.argument(v) for k, v in kwargs.items()}
            if any(map(keyword.iskeyword, node_kwargs)):
                raise Unsupported("opaque-call", what=f"{target} with such keywords")
        if target != "type":  # a method that takes no types of Python's
            node_args = tuple([_as_dtype(a) if isinstance(a, type) else a for a in node_args])
            node_kwargs = {k: _as_dtype(v) for k, v in node_kwargs.items()}
        node_args, node_kwargs = known_range.with_numbers(self, target, node_args, node_kwargs)
        if self._checks and self._relies_on_checks(target, node_args, node_kwargs):
            self.emit_checks()
        if relies_on_current_device(target, node_args, node_kwargs):
            self.tx.interp.concrete(self.tx.world.query(current_device))
        facts = len(env.log) if env else 0
        try:
            result, mutated, known = self._runner.run(op, target, node_args, node_kwargs)
        except Unsupported as refusal:
            made = known_values.literal(self, refusal, target, node_args, node_kwargs)
            if made is None:
                raise
            return made
        if name in _PARTS and env and len(env.log) > facts:  # sizes say how many parts there are
            place = f"{name}{node_args[1:]}{node_kwargs} at {provenance.user_line(self.tx)}"
            self.tx.builder.unroll(f"the result of {name}()", place, len(result))  # type: ignore[arg-type]
        given = args[result.place] if isinstance(result, Given) else None
        same = _argument_with_fake((args, kwargs), result) if known and given is None else None
        if same is not None and not mutated:
            return same  # ``x.contiguous()``, ``dropout`` in evaluation: the very same object
        fake = result if given is None else None
        node = self.add_call(op, target, node_args, node_kwargs, fake)
        for tensor in mutated:
            self.note_mutation(tensor)
        if self.contexts and torch.is_inference_mode_enabled():
            self._note_inference(node)
        self._note_risk(target, node)
        if isinstance(given, Value):
            return given
        self.emit_asserts()
        if same is not None:
            same.replace_node(self.tx, node)
            return same
        return self.wrap_result(node, result)

    def call_nodes(self, target: Callable[..., object], args: tuple[object, ...]) -> Value:
        """Append ``target(*args)`` for arguments that are nodes and constants already."""
        result, mutated, _ = self._runner.run("call_function", target, args, {}, remember=False)
        node = self.add_call("call_function", target, args, {}, result)
        for tensor in mutated:
            self.note_mutation(tensor)
        return self.wrap_result(node, result)

    @contextmanager
    def mapping(self) -> Iterator[None]:
        """Around the tracing of a body that is mapped: its tensors have one dimension less than
        those that operators will see."""
        self.mapped += 1
        try:
            yield
        finally:
            self.mapped -= 1

    def open_body(self) -> Body:
        """Begin a body: what is appended from now on is moved out when it is closed."""
        from torchsmith_tracer._src.graph.outline import Body

        return Body(self)

    def add_call(
        self,
        op: str,
        target: Callable[..., object] | str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        fake: object,
    ) -> fx.Node:
        """Append a call node whose fake result is known; arguments hold nodes and constants."""
        if target is operator.pow and not isinstance(args[0], fx.Node):
            target = pow  # fx prints the operator as ``-2 ** x``, which is ``-(2 ** x)``
        label = self._labels.get(target)
        if label is None:
            label = self._labels[target] = node_label(self.graph, target)
        # Given at once, fx would look through the arguments for numbers without a node; set by
        # its own ``__setattr__``, it would file the node again by what does not change.
        node = self.graph.create_node(op, target, name=label)
        object.__setattr__(node, "args", args)
        if kwargs:
            object.__setattr__(node, "kwargs", kwargs)
        self.op_count += 1
        self._added(node)
        meta = node.meta
        meta["example_value"] = fake
        trace = provenance.stack_trace(self.tx)
        if trace:
            meta["stack_trace"] = trace
        modules = provenance.module_stack(self.tx)
        if modules:
            meta["nn_module_stack"] = modules
        return node

    def _added(self, node: fx.Node) -> None:
        self.log.append(lambda: None if node._erased else self.graph.erase_node(node))
        if self._insert_before is None:
            self._insert_before = node

            def forget() -> None:
                self._insert_before = None

            self.log.append(forget)

    def add_module(self, module: object) -> fx.Node:
        """A node for a graph, or an object of the user's, that nodes of this one use."""
        name = self._fresh("body")
        self.modules[name] = module
        self.log.append(functools.partial(self.modules.__delitem__, name))
        node = self.graph.get_attr(name)
        node.meta["example_value"] = module
        self._added(node)
        return node

    def discard(self, node: fx.Node) -> None:
        """Erase a node without users for good: a rollback will not look for it."""
        self.graph.erase_node(node)
        if self._insert_before is node:
            self._insert_before = None

    def wrap_result(self, node: fx.Node, fake: object) -> Value:
        """The value of a node's result: tensor, tuple or list of results, number, constant."""
        return wrap_result(self, node, fake)

    def note_mutation(self, fake: torch.Tensor) -> None:
        """Remember that traced code writes to the storage of ``fake``."""
        from torchsmith_tracer._src.values.wrapper_tensors import flat_tensors

        for storage in map(storage_id, flat_tensors(fake)):
            self._note_counted(storage)
            self.written.append(storage)
            self.log.append(self.written.pop)
            if storage not in self.mutated:
                self.mutated.add(storage)
                self.log.append(functools.partial(self.mutated.discard, storage))

    def _note_counted(self, storage: int) -> None:
        """Remember that a storage is written to outside of inference mode, if so it is."""
        if torch.is_inference_mode_enabled() or storage in self.counted:
            return
        if storage in self.inference:
            why = "it writes to an inference tensor outside of inference mode"
            raise Unsupported("op-failed", what="an operator", error=why)
        self.counted.add(storage)
        self.log.append(functools.partial(self.counted.discard, storage))

    def _note_inference(self, node: fx.Node) -> None:
        """In inference mode, results in memory of their own are inference tensors."""
        made: list[torch.Tensor] = []
        given: list[torch.Tensor] = []
        collect_tensors(node.meta["example_value"], made)
        collect_tensors([n.meta["example_value"] for n in node.all_input_nodes], given)
        self.note_unwritable({*map(storage_id, made)} - {*map(storage_id, given)})

    def note_unwritable(self, storages: Iterable[int]) -> None:
        """Remember storages of inference tensors."""
        new = set(storages) - self.inference
        self.inference |= new
        self.log.append(lambda: self.inference.difference_update(new))

    def note_attributes(self, sources: Iterable[Source | None]) -> None:
        """Remember that the graph sets ``.grad`` or ``.data`` of the inputs with these sources."""
        before = dict(self.attributes)
        self.attributes.update((source, None) for source in sources if source is not None)
        self.log.append(lambda: setattr(self, "attributes", before))

    def _operation(self, target: Callable[..., object] | str) -> Operation:
        known = self._operations.get(target)
        if known is None:
            known = self._operations[target] = Operation.of(target)
        return known

    def _note_risk(self, target: Callable[..., object] | str, node: fx.Node) -> None:
        operation = self._operation(target)
        if not self.draws and draws(operation):
            self.draws = True
            self.log.append(lambda: setattr(self, "draws", False))
        at_risk = self.mutated <= self.at_risk
        if at_risk and (self.may_fail or not (operation.fails or self.draws)):
            return
        fails = self._fails(node) if operation.fails else refuses_types(node)
        if fails or overlaps(node) or (self.inference and self._saves_inference(node)):
            before, risk = self.may_fail, self.mutated - self.at_risk
            self.may_fail = True
            self.at_risk |= risk

            def undo() -> None:
                self.may_fail = before
                self.at_risk -= risk

            self.log.append(undo)

    def _saves_inference(self, node: fx.Node) -> bool:
        """Whether a call may save an inference tensor for its gradients, which eager refuses."""
        tensors = _tensors(node.all_input_nodes)
        return (
            torch.is_grad_enabled()
            and any(t.requires_grad for t in tensors)
            and not self.inference.isdisjoint(map(storage_id, tensors))
        )

    def base_of(self, fake: torch.Tensor) -> tuple[object, Source] | None:
        """The input in whose memory a tensor is, and where it comes from."""
        for entry in self.inputs:
            if isinstance(entry.fake, torch.Tensor) and storage_id(entry.fake) == storage_id(fake):
                return entry.example, entry.source
        return None

    def saves_after_writing(self) -> bool:
        """Whether autograd may save inputs of a graph that writes to some."""
        fakes = (entry.fake for entry in self.inputs) if self.mutated else ()
        return any(f.requires_grad for f in fakes if isinstance(f, torch.Tensor))

    def _fails(self, node: fx.Node) -> bool:
        """Whether a call may raise when it runs, because of the data."""
        operation = self._operations.get(node.target)
        if operation is None or not operation.fails:
            return False
        nodes = dict.fromkeys(node.all_input_nodes)
        if operation.name.strip("_") == "setitem":  # what is stored is no index
            map_nodes(node.args[:2], (nodes := {}).setdefault)  # type: ignore[arg-type]
        return may_raise(operation, _tensors(nodes)) and not fills(operation, node)

    def emit_asserts(self) -> None:
        """Append what has been assumed about numbers that only the data determines."""
        env = self.shape_env
        while env is not None and self._asserted < len(env.runtime_asserts):
            found = env.runtime_asserts[self._asserted]
            self._asserted += 1
            asserts.emit(self, found.condition)

    def append_assert(self, condition: fx.Node, message: str) -> None:
        """Append a check that the number ``condition`` is true."""
        node = self.add_call("call_function", asserts.ASSERT, (condition, message), {}, None)
        self._note_risk(asserts.ASSERT, node)

    def check_later(self, condition: Any) -> None:
        """Note that the graph is to fail where ``condition`` is not true. Several are checked at
        once, before what could fail, or write, for want of the check: on an accelerator a check
        is a wait for it, and an index that is wrong there takes the whole process with it."""
        before = self._checks
        self._checks = (*before, condition.node)
        self.log.append(lambda: setattr(self, "_checks", before))

    def emit_checks(self) -> None:
        """Append the check of what is to be true."""
        if not self._checks:
            return
        before, self._checks = self._checks, ()
        self.log.append(lambda: setattr(self, "_checks", before))
        known: dict[torch.device, fx.Node] = {}
        for node in before:
            device = node.meta["example_value"].device
            found = known.get(device)
            known[device] = node if found is None else self._node(torch.logical_and, found, node)
        for device, node in known.items():
            here = node if device.type == "cpu" else self._node(torch.Tensor.cpu, node)
            self._note_risk(assert_async, self._node(assert_async, here))

    def _relies_on_checks(self, target: Callable[..., object] | str, *given: object) -> bool:
        """Whether a call may fail for want of a check, or writes what it is given."""
        nodes: list[fx.Node] = []
        map_nodes(given, nodes.append)
        operation = self._operation(target)
        written = in_place(target) or "out" in given[-1]  # type: ignore[operator]
        return written or not operation.own or relies_on_data(operation.name, len(nodes))

    def _node(self, target: Callable[..., object], *args: fx.Node) -> fx.Node:
        fake, _, _ = self._runner.run("call_function", target, args, {}, remember=False)
        return self.add_call("call_function", target, args, {}, fake)

    def inputs_at_risk(self) -> list[GraphInput]:
        """Inputs that the graph may have changed when an operator fails."""
        if not self.at_risk:
            return []
        fakes = ((e, e.fake) for e in self.inputs if isinstance(e.fake, torch.Tensor))
        return [entry for entry, fake in fakes if storage_id(fake) in self.at_risk]

    def generators_at_risk(self) -> list[GraphInput]:
        """Random generators that the graph may have drawn from when an operator fails."""
        found = [entry for entry in self.inputs if isinstance(entry.fake, torch.Generator)]
        return found if self.may_fail else []

    # --- contexts --------------------------------------------------------------------------
    def enter_context(self, context: OpenContext) -> None:
        """Note that traced code has entered ``context``."""
        self.contexts.append(context)
        self.log.append(lambda: self.contexts.remove(context))

    def exit_context(self, context: OpenContext) -> None:
        """Note that traced code has left ``context``."""
        at = self.contexts.index(context)
        del self.contexts[at]
        self.log.append(lambda: self.contexts.insert(at, context))

    def restore_state(self) -> None:
        """Take back the real state changes of contexts that are still open. ``finish`` does it; a
        trace that is given up must call it. Doing it twice is harmless."""
        if not self._restored:
            self._restored = True
            for context in reversed(self.contexts):
                context.release()
            set_grad_enabled(self._entry_grad_mode)

    # --- the end ---------------------------------------------------------------------------
    def finish(self, outputs: Sequence[Value]) -> fx.GraphModule:
        """Add the output node (a tuple), prune, and make the module.

        ``inputs`` is reduced to the placeholders that are used. Open contexts are left inside
        the graph; they stay in ``contexts`` for the code generator.
        """
        self.emit_checks()
        for context in reversed(self.contexts):
            context.close_in_graph(self)
        if self.contexts:  # perhaps they were not left in the order in which they were entered
            self.add_call("call_function", set_grad_enabled, (self._entry_grad_mode,), {}, None)
        self.restore_state()
        results = tuple([self.argument(v) for v in outputs])
        if self.may_fail:
            results += tuple(cleanup.unused_that_fail(self.graph, results, self._fails))
        if any(isinstance(n, fx.Node) and n._erased for n in results):
            what = "a transformed function whose tensors are used outside of it"
            raise Unsupported("opaque-call", what=what)
        node = self.graph.output(results)  # type: ignore[arg-type]
        node.meta["example_value"] = map_nodes(results, lambda n: n.meta["example_value"])
        cleanup.remove_redundant_toggles(self.graph, self._entry_grad_mode)
        cleanup.remove_trivial_dead_nodes(self.graph)
        # What lives on where a hook follows may be given one, too.
        others = [n for n in results if isinstance(n, fx.Node) and n.op != "placeholder"]
        wanted = [n for n in others if getattr(n.meta["example_value"], "requires_grad", False)]
        marks = {n: mark for mark in self.watched.values() for n in (*self.watched, *wanted)}
        for node, watched in marks.items():
            if node.users and not node._erased:
                with self.graph.inserting_after(node):
                    self.graph.call_function(watched, (node,)).meta["example_value"] = None
        kept = []
        for entry in self.inputs:
            if entry.node.users:
                kept.append(entry)
                if (changed := self._first.get(id(entry.fake))) is not None:
                    entry.node.meta["example_value"] = changed[1]
            else:
                self.graph.erase_node(entry.node)
        self.inputs = kept
        module = CapturedGraph(self.modules, self.graph, class_name="CapturedGraph")
        module.meta["sources"] = [entry.source for entry in kept]
        return module

    # --- helpers ---------------------------------------------------------------------------
    def argument(self, value: object) -> object:
        """The form in which an argument stands in a node; lazy elements are read now."""
        if type(value) is TensorValue:
            return value.node
        if isinstance(value, Value):
            return value.as_proxy()
        if type(value) is tuple:
            return tuple([self.argument(v) for v in value])
        if type(value) is list:
            return [self.argument(v) for v in value]
        return value

    def _first_call(self) -> fx.Node:
        if self._insert_before is not None:
            return self._insert_before
        root = self.graph._root
        return root  # inserting before the root appends

    def _fresh(self, name: str) -> str:
        candidate, n = name, 0
        while candidate in self._names:
            n += 1
            candidate = f"{name}_{n}"
        self._names.add(candidate)
        return candidate


def _tensors(nodes: Iterable[fx.Node]) -> list[torch.Tensor]:
    """The fakes of all tensors among what a call is given."""
    fakes = (n.meta["example_value"] for n in nodes)
    return [f for f in fakes if isinstance(f, torch.Tensor)]


def _as_dtype(arg: object) -> object:
    """``dtype=float`` and the like as what torch takes them for; a graph cannot print them."""
    return _DTYPES.get(arg, arg) if isinstance(arg, type) else arg


_PARTS = frozenset(("split", "unbind", "chunk", "tensor_split"))
_DTYPE_OF_DATA = frozenset(("tensor", "as_tensor", "asarray", "new_tensor"))
_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def _argument_with_fake(nest: object, fake: object) -> TensorValue | None:
    """The tensor argument whose fake is ``fake``."""
    if isinstance(nest, TensorValue):
        return nest if nest.fake is fake else None
    if isinstance(nest, SequenceValue):
        nest = nest.items
    parts = nest.values() if isinstance(nest, dict) else nest
    if isinstance(parts, tuple | list) or parts is not nest:
        for part in parts:  # type: ignore[attr-defined]
            found = _argument_with_fake(part, fake)
            if found is not None:
                return found
    return None


_STRIP = re.compile(r"\W+")


def _input_name(source: Source) -> str:
    """A readable placeholder name from a source, kept short for deep module paths."""
    text = source.expr
    for noise in ("._modules", "._parameters", "._buffers"):
        text = text.replace(noise, "")
    text = _STRIP.sub("_", text).strip("_") or "arg"
    if not text[0].isalpha():
        text = f"arg_{text}"
    text = text.lower()  # as fx writes it, so that `_fresh` sees what is taken
    return text if len(text) <= 80 else text[-80:].lstrip("_0123456789")
