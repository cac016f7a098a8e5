"""``FunctionalMode``: records what a program computes as a graph without writes.

One pass over the dispatcher does everything: it decomposes, records, and turns writes into new
values. The program itself runs on fake tensors and keeps eager's view of sizes, strides and
aliases; the graph beside it is functional. The algorithm is that of PyTorch's functionalization:
tensors that share storage have a common ``Base`` with a current value and a generation; each is
the base plus a chain of view steps; a write makes a new value of the base, and readers that are
behind replay their chain.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torchsmith_guards import Layout, hint_of, is_contiguous, layout_of, same_sizes, settled

from torchsmith_fx_backend._src.aot.draws import Draws, memory_order
from torchsmith_fx_backend._src.aot.mutable import add_defaults, call_on_copies
from torchsmith_fx_backend._src.aot.overlap import (
    is_dense,
    order_matters,
    overlaps_itself,
    refused_by_eager,
    same_place,
)
from torchsmith_fx_backend._src.aot.values import Base, Call, Value
from torchsmith_fx_backend._src.aot.views import LAZY, UNCOUNTED, Step, scatter
from torchsmith_fx_backend._src.capture.composites import run_composite
from torchsmith_fx_backend._src.capture.ops import (
    QUERIES,
    Effect,
    OpInfo,
    functional_variant,
    is_factory,
    is_out_variant,
    is_refused,
    op_info,
    view_variant,
)
from torchsmith_fx_backend._src.capture.recorder import Recorder, values_of
from torchsmith_fx_backend._src.capture.symbols import SYMBOLIC_TYPES
from torchsmith_fx_backend._src.capture.torch_private import (
    DispatchMode,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    above_autograd_views,
    attention_switches,
    below_autograd,
    fake_like,
    gradient_clock,
    make_fake,
    number_in,
    pytree,
    run_composite_kernel,
)
from torchsmith_fx_backend._src.captured import WRITES
from torchsmith_fx_backend.errors import UnsupportedError

aten = torch.ops.aten

# What eager's batch norm is recorded as: that one writes without a word in its schema.
BATCH_NORM = aten._native_batch_norm_legit.default

# rule(mode, *args, **kwargs) -> result, or NotImplemented to decline
Rule = Callable[..., Any]

_DEVICE = torch.ops.prim.device.default
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, complex)
_SYM = frozenset(SYMBOLIC_TYPES)


# A call with the ids of its tensors that have gradients, and what it gave.
Hidden = tuple[OpOverload, Any, Any, set[int], Any]


class FunctionalMode(DispatchMode):  # type: ignore[no-untyped-call]
    """Records a functional graph of primitive operators.

    Attributes:
        recorder: where nodes go.
        fake_mode: computes metadata.
    """

    def __init__(
        self, recorder: Recorder, fake_mode: FakeTensorMode, rules: Mapping[Any, Rule], static: bool
    ) -> None:
        """Start recording.

        Args:
            recorder: the graph.
            fake_mode: the mode that the inputs' fake tensors belong to.
            rules: decompositions.
            static: no size is symbolic.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.fake_mode = fake_mode
        self._rules = rules
        self._static = static
        # Every symbol is a size of at least two; sizes that come from data may be anything.
        self._bounded = not getattr(fake_mode.shape_env, "has_unbacked", False)
        # Some tensor is lazily conjugated or negated: layout rules do not carry these bits.
        self._lazy = False
        self._attention = attention_switches()
        self.values: dict[int, Value] = {}
        self._adopted: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        self._names: dict[int, str] = {}
        self._draws = Draws(recorder)
        self._made: object = None  # by a factory, the last call: its binding detaches the result
        self.bases: list[Base] = []
        self._items: dict[tuple[fx.Node, int], fx.Node] = {}
        # By the number of autograd's node, calls of which that does not show what it saves.
        self.hidden: dict[int, Hidden] = {}
        self.put: dict[int | None, Sequence[int]] = {}  # by node: sizes of what puts write
        self.moved: list[tuple[torch.Tensor, Base]] = []  # given other data, with the old place

    # Roots: what belongs to the caller.

    def add_root(self, tensor: torch.Tensor, node: fx.Node) -> None:
        """``tensor`` (fake) is an input or attribute that ``node`` reads."""
        base = Base(node, origin=node)
        self.bases.append(base)
        self._lazy = self._lazy or tensor.is_conj()
        self.values[id(tensor)] = Value(tensor, base, (), node, 0, True)
        self.recorder.symbols.bind_tensor(tensor, node)

    def know(self, value: Value) -> None:
        """From now on ``value.tensor`` is what ``value`` says."""
        self.values[id(value.tensor)] = value

    def name_tensors(self, named: Mapping[str, torch.Tensor]) -> None:
        """Names for real tensors that the program may refer to."""
        for name, tensor in named.items():
            self._names.setdefault(id(tensor), name)

    def adopt(self, tensor: torch.Tensor) -> FakeTensor:
        """The fake tensor that stands for a real one which is no input."""
        known = self._adopted.get(id(tensor))
        if known is not None:
            return known[1]
        if tensor.layout is not torch.strided:
            raise UnsupportedError(what=f"a {tensor.layout} tensor in the graph")
        fake = fake_like(self.fake_mode, tensor)
        name = self._names.get(id(tensor))
        if name is None:
            name = self.recorder.fresh_attribute_name("_tensor_constant")
        self._adopted[id(tensor)] = (tensor, fake)
        self.add_root(fake, self.recorder.attribute(name, tensor, fake))
        return fake

    def lift(self, tensor: torch.Tensor, fake: FakeTensor, node: fx.Node) -> None:
        """``node`` stands for the real ``tensor`` from now on, with ``fake`` in its place."""
        self._adopted[id(tensor)] = (tensor, fake)
        self.add_root(fake, node)

    # Dispatch.

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        made, self._made = self._made, None
        if func is _DEVICE and isinstance(args[0], FakeTensor):  # autograd asks all the time
            return args[0].fake_device
        if func is aten.detach.default and (args[0] is made or above_autograd_views()):
            return made if args[0] is made else self._same_place(args[0])
        with below_autograd():
            try:
                result = self.call(func, *args, **(kwargs or {}))
            except Exception as error:
                self.recorder.blame(error)
                raise
        self._made = result if is_factory(func) else None
        return result

    def _same_place(self, tensor: torch.Tensor) -> torch.Tensor:
        """The object that autograd makes to save a result: no operation of the program's."""
        value = self.value_of(tensor)
        result = self.snapshot(value.tensor)
        self.values[id(result)] = replace(value, tensor=result)
        return result

    def call(self, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
        """Run ``func`` on the program's tensors and record it."""
        if func in QUERIES:
            return func(*args, **kwargs)
        info = op_info(func)
        if (info.refuses or info.numbers) and is_refused(info, args, kwargs):
            raise UnsupportedError(what=f"{func} of such operands, which eager refuses")
        rule = self._rules.get(func)
        if rule is not None:
            result = rule(self, *args, **kwargs)
            if result is not NotImplemented:
                if info.effect is Effect.NONE:
                    self._own(result)
                return result
        if info.composite and not self._keeps(func):
            with self.decomposing(func):
                return run_composite(func, args, kwargs)
        if func is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            return self._lift(args[0])
        match info.effect:
            case Effect.NONE:
                return self._record(func, args, kwargs)
            case Effect.VIEW:
                return self._record_view(func, info, args, kwargs)
            case Effect.WRITE:
                return self._record_write(func, info, args, kwargs)
            case Effect.METADATA:
                return self._record_metadata_change(func, args, kwargs)

    def tensor(self, func: OpOverload, *args: Any, **kwargs: Any) -> torch.Tensor:
        """``call`` of an operator that returns one tensor."""
        result = self.call(func, *args, **kwargs)
        assert isinstance(result, torch.Tensor), f"{func} returns a tensor"
        return result

    def _prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        call = Call([], {}, [], {})
        for arg in args:
            fake, node = self._map(arg, call)
            call.args.append(fake)
            call.node_args.append(node)
        for key, arg in kwargs.items():
            call.kwargs[key], call.node_kwargs[key] = self._map(arg, call)
        return call

    def _map(self, arg: Any, call: Call) -> tuple[Any, Any]:
        """``arg`` for the program (real tensors become fake) and for the graph."""
        kind = type(arg)
        if kind in _PLAIN:
            return arg, arg
        if isinstance(arg, torch.Tensor):
            value = self.value_of(arg)
            call.values.append(value)
            call.exact = call.exact and value.exact
            return value.tensor, value.node
        if isinstance(arg, (list, tuple)):
            pairs = [self._map(item, call) for item in arg]
            return [p[0] for p in pairs], [p[1] for p in pairs]
        if kind in _SYM:
            node = self.recorder.symbols.lower(arg)
            return (arg if isinstance(node, fx.Node) else node), node
        return arg, arg

    def value_of(self, tensor: torch.Tensor) -> Value:
        """What is known about a tensor of the program, brought up to date with writes."""
        value = self.values.get(id(tensor))
        if value is None:
            if isinstance(tensor, FakeTensor):
                raise UnsupportedError(what="a tensor that was computed outside of the trace")
            value = self.values[id(self.adopt(tensor))]
        if value.generation != value.base.generation:
            value.node = self._replay_on_base(value)
            value.generation = value.base.generation
            value.exact = _same_layout(value.node.meta["val"], value.tensor)
        return value

    def _replay_on_base(self, value: Value) -> fx.Node:
        """``value`` after a write to its base, which may have left that in another layout."""
        base = value.base
        try:
            return self._replay(base.node, value.steps)
        except UnsupportedError:
            layout = base.root if base.origin is None else base.origin.meta["val"]
            if base.exact or layout is None:
                raise
        self._regain(base, layout)
        return self._replay(base.node, value.steps)

    def _regain(self, base: Base, layout: torch.Tensor) -> None:
        """Give a storage that was written the strides of ``layout``; its values stay."""
        base.node = self._restride(base.node, layout)
        base.exact = True
        base.generation += 1  # what is known of its views is of the node before
        base.unseen += 1

    # Nodes from nodes.

    def _keeps(self, func: OpOverload) -> bool:
        """Whether a composite operator stays one node; not where the program lets attention take
        other kernels for a while, since the choice is made now."""
        if func is aten.scaled_dot_product_attention.default:
            return attention_switches() == self._attention
        return func in KEPT_WHOLE

    def evaluate(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Metadata of a call on fake tensors."""
        if self._bounded and not self._lazy:
            layout = layout_of(func, args, kwargs)
            if isinstance(layout, tuple):
                return self._fake(layout)
            if layout is not None:
                results = [self._fake(p) if isinstance(p, tuple) else p for p in layout]
                return results if len(func._schema.returns) == 1 else tuple(results)
        if func in KEPT_WHOLE:
            return run_composite_kernel(func, args, kwargs)
        if op_info(func).seeded:  # of whose numbers no layout depends
            args = [hint_of(a) if type(a) is torch.SymFloat else a for a in args]
        return func(*args, **kwargs)

    def _fake(self, layout: Layout) -> FakeTensor:
        size, stride, dtype, device, offset = layout
        known = [settled(n) for n in size]
        return make_fake(self.fake_mode, known, stride, dtype, device, offset)

    def apply(self, target: OpOverload, args: Sequence[Any], **kwargs: Any) -> fx.Node:
        """Add a call on graph nodes; its metadata follows from theirs."""
        values = values_of(args)
        if target is aten.reshape.default:
            return self._reshape(args[0], values[0], args[1])
        result = self.evaluate(target, values, kwargs)
        return self.recorder.call(
            target, self._lower_symbols(args), kwargs, result, op_info(target).name
        )

    def _lower_symbols(self, args: Any) -> Any:
        lower = self.recorder.symbols.lower
        return [
            self._lower_symbols(a) if isinstance(a, list) else lower(a) if type(a) in _SYM else a
            for a in args
        ]

    def _reshape(self, node: fx.Node, value: torch.Tensor, size: list[Any]) -> fx.Node:
        if same_sizes(value.shape, size):
            return node
        if not is_contiguous(value):
            node = self.apply(aten.clone.default, (node,), memory_format=torch.contiguous_format)
        return self.apply(aten.view.default, (node, size))

    def _replay(self, node: fx.Node, steps: Sequence[Step], lazy: bool = False) -> fx.Node:
        """``steps`` applied to ``node``; with ``lazy``, negated views stay views."""
        for step in steps:
            if step.target is aten._neg_view.default and not lazy:
                node = self.apply(aten.neg.default, (node,))
                continue
            if step.target is aten.as_strided.default and not is_contiguous(node.meta["val"]):
                raise UnsupportedError(what="as_strided after a write to its base")
            values = values_of(step.args)
            try:
                result = self.evaluate(step.target, [node.meta["val"], *values], dict(step.kwargs))
            except (RuntimeError, ValueError) as error:
                raise UnsupportedError(what=f"{step.target} after a write to its base") from error
            name = op_info(step.target).name
            node = self.recorder.call(
                step.target, (node, *step.args), dict(step.kwargs), result, name
            )
            if step.index is not None:
                node = self._item(node, step.index, result[step.index])
        return node

    def _item(self, node: fx.Node, index: int, value: Any) -> fx.Node:
        found = self._items.get((node, index))  # of a draw that a backward pass has made again
        if found is None:
            found = self.recorder.call(operator.getitem, (node, index), {}, value, "getitem")
            self._items[node, index] = found
        return found

    # The four effects.

    def _record(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        call = self._prepare(args, kwargs)
        result = self.evaluate(func, call.args, call.kwargs)
        value = result
        if not call.exact:
            value = self.evaluate(func, values_of(call.node_args), values_of(call.node_kwargs))
        node = self._draws.call(func, call.node_args, call.node_kwargs, value)
        self._track(result, value, node)
        if isinstance(result, list):
            self._hide(gradient_clock() - 1, func, call.args, call.kwargs, result)
        return result

    def _hide(self, number: int, func: OpOverload, args: Any, kwargs: Any, results: Any) -> bool:
        """Keep a call if autograd makes a node of it."""
        given = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        wanted = {id(a) for a in given if a.requires_grad and torch.is_grad_enabled()}
        if wanted:
            self.hidden[number] = (func, args, kwargs, wanted, results)
        return bool(wanted)

    def _track(self, result: Any, value: Any, node: fx.Node) -> None:
        if isinstance(result, torch.Tensor):
            if id(result) in self.values:
                return
            exact = result is value or _same_layout(value, result)
            base = Base(node, None, 0, exact, result)
            self.values[id(result)] = Value(result, base, (), node, 0, exact)
            self._bind(result, node)
        elif isinstance(result, (list, tuple)):
            for index, (item, item_value) in enumerate(zip(result, value)):
                if isinstance(item, torch.Tensor) or type(item) in _SYM:
                    self._track(item, item_value, self._item(node, index, item_value))
        elif type(result) in _SYM:
            self.recorder.symbols.bind(result, node)

    def _bind(self, result: torch.Tensor, node: fx.Node) -> None:
        """Take sizes that data decides about from ``result``, which ``node`` makes."""
        if not self._static:
            found = self.recorder.symbols.bind_tensor(result, node)
            self._bounded = self._bounded and not any(n.startswith("u") for n, _, _ in found)

    def _own(self, results: Any) -> None:
        """Let each result of a rule that ends in a view be no view, as the operator's is none."""
        for result in results if isinstance(results, (list, tuple)) else (results,):
            value = self.values.get(id(result))
            if value is not None and value.steps and value.base.origin is None:
                value = self.value_of(value.tensor)
                base = Base(value.node, None, 0, value.exact, value.tensor)
                self.values[id(result)] = replace(value, base=base, steps=(), generation=0)

    def _record_view(
        self, func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if not isinstance(args[0], torch.Tensor):  # autograd conjugates numbers, too
            kind = torch.complex128 if isinstance(args[0], complex) else torch.float64
            args = (self.call(aten.scalar_tensor.default, args[0], dtype=kind), *args[1:])
        call = self._prepare(args, kwargs)
        source = call.values[0]
        result = self.evaluate(func, call.args, call.kwargs)
        if result is source.tensor:
            return result
        step = Step(func, _freeze(call.node_args[1:]), tuple(call.node_kwargs.items()))
        self._lazy = self._lazy or func in LAZY
        if isinstance(result, (list, tuple)):
            whole = self._replay(source.node, (step,))
            for index, item in enumerate(result):
                node = self._item(whole, index, whole.meta["val"][index])
                self._add_view(source, item, replace(step, index=index), node)
            return result
        if not source.exact or _moved(source) or func is aten._neg_view.default:
            self._add_view(source, result, step)
            return result
        node = self.recorder.call(func, call.node_args, call.node_kwargs, result, info.name)
        self._add_view(source, result, step, node)
        return result

    def _add_view(
        self, source: Value, result: torch.Tensor, step: Step, node: fx.Node | None = None
    ) -> None:
        """``result`` is ``source`` after ``step``, which ``node`` computes if it is given."""
        node = node or self._replay(source.node, (step,))
        base, steps = source.base, (*source.steps, step)
        exact = _same_layout(node.meta["val"], result)
        now = base.generation
        self.values[id(result)] = Value(result, base, steps, node, now, exact, now)
        self._bind(result, node)

    def _record_write(
        self, func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        call = self._prepare(args, kwargs)
        written = [
            call.args[i] if i < len(call.args) else call.kwargs.get(info.names[i])
            for i in info.writes
        ]
        targets = [t for w in written for t in (w if isinstance(w, list) else [w]) if t is not None]
        if any(overlaps_itself(t) for t in targets):
            if func is not aten.copy_.default or call.args[1] is not call.args[0]:
                func(*call.args, **call.kwargs)  # eager refuses most of these: let it say so
            raise UnsupportedError(what=f"{func} on a tensor that overlaps itself")
        self._check_overlap(func, targets, call)
        variant = functional_variant(func)
        if func is aten.copy_.default:
            news = [self._copied(call, func)]
            result: Any = None
        elif variant is None or (
            # Numbers of a tensor in one piece are drawn by another algorithm.
            func is aten.normal_.default and memory_order(targets[0]) is not None
        ):
            news, result = self._call_on_copies(func, info, call)
        elif (new := self._by_rule(func, variant, info, call)) is not None:
            news, result = [new], None
        else:
            news, result = self._call_variant(func, variant, info, call, targets)
        clock = gradient_clock()
        for place, target in enumerate(targets if not info.seeded else ()):
            several = isinstance(call.args[0], list)
            args = [a[place : place + 1] if several and type(a) is list else a for a in call.args]
            clock += target._is_view() and self._hide(clock, func, args, call.kwargs, [])
        for target, new in zip(targets, news):
            self.write(target, new, func, call)
        if info.name.startswith("_foreach_"):  # their kernels count writes, not autograd
            torch.autograd.graph.increment_version(targets)
        if info.effect is Effect.WRITE and func._schema.returns and result is None:
            return targets[0] if len(func._schema.returns) == 1 else tuple(targets)
        return result

    def _check_overlap(self, func: OpOverload, targets: Sequence[torch.Tensor], call: Call) -> None:
        pointwise = func is aten.copy_.default or torch.Tag.pointwise in func.tags
        for target in targets:
            base = self.values[id(target)].base
            others = list(call.values)
            others.remove(self.values[id(target)])
            for value in others:
                if value.base is not base or (pointwise and same_place(value.tensor, target)):
                    continue
                asked = target, value.tensor, pointwise
                if refused_by_eager(*asked) or order_matters(*asked):
                    raise UnsupportedError(what=f"{func} of memory that it reads elsewhere, too")

    def _by_rule(
        self, func: OpOverload, variant: OpOverload, info: OpInfo, call: Call
    ) -> fx.Node | None:
        """What ``func`` writes into its only target, by the decomposition of ``variant``."""
        rule = self._rules.get(variant)
        if rule is None or len(info.writes) > 1 or info.seeded:
            return None
        args, kwargs = _read_only(func, variant, info, call.args, call.kwargs)
        result = rule(self, *args, **kwargs)
        if not isinstance(result, torch.Tensor):
            return None
        value = self.value_of(result)
        fresh = not value.steps and value.base.origin is None and not value.generation
        return value.node if fresh else self.apply(aten.clone.default, (value.node,))

    def _call_variant(
        self,
        func: OpOverload,
        variant: OpOverload,
        info: OpInfo,
        call: Call,
        targets: list[torch.Tensor],
    ) -> tuple[list[fx.Node], Any]:
        args, kwargs = _read_only(func, variant, info, call.node_args, call.node_kwargs)
        order = memory_order(args[0].meta["val"]) if info.seeded and call.values else None
        if order is not None:  # numbers are drawn in the order in which they lie in memory
            args[0] = self.apply(aten.permute.default, (args[0], order))
        value = self.evaluate(variant, values_of(args), values_of(kwargs))
        if isinstance(value, (tuple, list)) and len(value) > len(targets):
            # The last results stand for what is written, whatever torch's fakes are (batch norm's
            # running statistics of low precision are float32 there, and are not in truth).
            value = (*value[: -len(targets)], *map(self.snapshot, targets))
        node = self._draws.call(variant, args, kwargs, value)
        if order is not None:
            back = [order.index(dim) for dim in range(len(order))]
            return [self.apply(aten.permute.default, (node, back))], None
        if isinstance(value, torch.Tensor):
            return [node], None
        parts = []
        for i, part in enumerate(value):
            parts.append(self._item(node, i, part))
            if isinstance(part, (list, tuple)):
                whole = parts.pop()
                parts += [self._item(whole, j, each) for j, each in enumerate(part)]
        if len(parts) == len(targets):
            return parts, None
        # Results first, then the new values of what is written.
        plain = len(parts) - len(targets)
        return parts[plain:], self._tracked(parts[:plain])

    def _tracked(self, nodes: Sequence[fx.Node]) -> Any:
        """What an operator returns besides what it writes: None, a tensor, or several."""
        for node in nodes:
            self._track(node.meta["val"], node.meta["val"], node)
        results = tuple(node.meta["val"] for node in nodes)
        return results[0] if len(results) == 1 else results or None

    def _call_on_copies(
        self, func: OpOverload, info: OpInfo, call: Call
    ) -> tuple[list[fx.Node], Any]:
        schema = func._schema.arguments
        if any("[]" in str(schema[i].type) for i in info.writes):
            raise UnsupportedError(what=f"{func}, which writes a list of tensors")
        fakes, nodes = list(call.args), list(call.node_args)
        for arg in schema[len(fakes) :]:
            fakes.append(call.kwargs.get(arg.name, arg.default_value))
            nodes.append(call.node_kwargs.get(arg.name, arg.default_value))
        writes = [i for i in info.writes if fakes[i] is not None]
        if any(type(n) is int and n == 0 for i in writes for n in fakes[i].shape):
            # Observers give such a tensor its size, of which a fake one knows nothing.
            raise UnsupportedError(what=f"{func}, which may resize a tensor without elements")
        name = f"{func._schema.name}.{func._schema.overload_name or 'default'}"
        value = call_on_copies(name, writes, *fakes)
        node = self.recorder.call(call_on_copies, (name, writes, *nodes), {}, value, info.name)
        parts = [self._item(node, i, part) for i, part in enumerate(value)]
        plain = len(parts) - len(writes)
        result = self._tracked(parts[:plain])
        returns_written = any(r.alias_info is not None for r in func._schema.returns)
        return parts[plain:], None if returns_written else result

    def _copied(self, call: Call, func: OpOverload) -> fx.Node:
        """The value that ``copy_`` gives its target: expanded, converted, and never an alias."""
        target, source = call.args[0], call.args[1]
        node = call.node_args[1]
        if not same_sizes(source.shape, target.shape):
            node = self.apply(aten.expand.default, (node, list(target.shape)))
        if source.dtype != target.dtype or source.device != target.device:
            kwargs: dict[str, Any] = {}
            if source.dtype != target.dtype:
                kwargs["dtype"] = target.dtype
            if source.device != target.device:
                kwargs["device"] = target.device
            return self.apply(aten._to_copy.default, (node,), **kwargs)
        return self.apply(aten.clone.default, (node,))

    def write(self, tensor: torch.Tensor, new: fx.Node, func: OpOverload, call: Call) -> None:
        """``tensor`` now has the value of ``new``."""
        value = self.values[id(tensor)]
        new_value = new.meta["val"]
        if not same_sizes(new_value.shape, tensor.shape) and new_value.shape != tensor.shape:
            func(*call.args, **call.kwargs)  # raises as eager does, when it does
            raise UnsupportedError(what=f"{func}, which resizes its target")
        if new_value.dtype != tensor.dtype:
            if not torch.can_cast(new_value.dtype, tensor.dtype):
                func(*call.args, **call.kwargs)  # raises as eager does, when it does
                raise UnsupportedError(what=f"{func}, whose result has another kind of dtype")
            new = self.apply(aten._to_copy.default, (new,), dtype=tensor.dtype)
        base = value.base
        if value.steps and base.origin is not None and overlaps_itself(base.origin.meta["val"]):
            raise UnsupportedError(what=f"{func} on a part of an input that overlaps itself")
        whole = new
        if value.steps:
            prefixes = [base.node]
            for step in value.steps[:-1]:
                prefixes.append(self._replay(prefixes[-1], (step,)))
            for before, step in zip(reversed(prefixes), reversed(value.steps)):
                whole = scatter(self, before, whole, step)
        exact_before = base.node.meta["val"] if base.exact else None
        base.node = whole
        base.exact = exact_before is not None and _same_layout(whole.meta["val"], exact_before)
        base.generation += 1
        base.unseen += func is BATCH_NORM or UNCOUNTED in value.steps
        value.node = new
        value.generation = base.generation
        value.exact = _same_layout(new.meta["val"], tensor)

    def _record_metadata_change(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func is aten.detach_.default:
            return args[0]
        call = self._prepare(args, kwargs)
        value = call.values[0]
        base = value.base
        alone = not any(v.base is base and v is not value for v in self.values.values())
        base.root = None
        if base.origin is not None and not value.steps:
            raise UnsupportedError(what=f"{func} on an input, which changes its sizes")
        variant = view_variant(func)
        if variant is None:
            raise UnsupportedError(what=str(func))
        tensor = value.tensor
        self.note_layout(tensor)
        size = tensor.numel() if is_dense(tensor) else None
        func(*call.args, **call.kwargs)
        step = Step(variant, _freeze(call.node_args[1:]), tuple(call.node_kwargs.items()))
        value.node = self._replay(value.node, (step,))
        value.exact = _same_layout(value.node.meta["val"], tensor)
        if alone and not value.steps and is_dense(tensor) and tensor.numel() == size:
            # Nobody knows these elements in their old order: born in the new one.
            base.node, base.exact, base.root = value.node, value.exact, args[0]
        else:
            value.steps = (*value.steps, step)
        return tensor

    def note_layout(self, tensor: torch.Tensor) -> None:
        """Let nodes know the layout of ``tensor`` as it is before it changes."""
        before = self.snapshot(tensor)
        for node in self.recorder.graph.nodes:  # what made it may be writes ago
            if (held := node.meta.get("val")) is tensor or isinstance(held, (list, tuple)):
                node.meta["val"] = pytree.tree_map(lambda x: before if x is tensor else x, held)

    def snapshot(self, tensor: torch.Tensor) -> FakeTensor:
        """Another fake tensor of the layout of ``tensor``."""
        return fake_like(self.fake_mode, tensor, tensor.storage_offset())

    def _lift(self, tensor: torch.Tensor) -> Any:
        """A literal: one element becomes a ``full``, more become a copied attribute."""
        if tensor.numel() == 1 and tensor.device.type == "cpu" and not tensor.is_complex():
            return self.call(
                aten.full.default,
                list(tensor.shape),
                number_in(tensor),
                dtype=tensor.dtype,
                device=tensor.device,
                pin_memory=False,
            )
        return self._record(aten.lift_fresh_copy.default, (tensor,), {})

    # The end of the graph.

    def write_back(self) -> None:
        """Copy the final values of written inputs and attributes into them."""
        for base in self.bases:
            origin = base.origin
            if origin is None or base.generation == 0 or base.node is origin:
                continue
            copy = self.recorder.call(
                aten.copy_.default, (origin, base.node), {}, origin.meta["val"], "copy_"
            )
            copy.meta[WRITES] = base.generation - base.unseen

    def share(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give a storage that several results share eager's strides; call before ``output``."""
        seen: set[int] = set()
        for tensor in tensors:
            base = self.value_of(tensor).base
            again = id(base) in seen and base.origin is None and not base.exact
            if again and base.root is not None:
                self._regain(base, base.root)
            seen.add(id(base))

    def output(self, tensor: torch.Tensor) -> fx.Node:
        """The node to return for ``tensor``: with eager's strides, aliases and identity.

        Call after ``write_back``: views of written inputs are taken from the inputs themselves.
        """
        value = self.values.get(id(tensor)) or self.value_of(tensor)
        base = value.base
        lazy = any(step.target is aten._neg_view.default for step in value.steps)
        if base.origin is not None:
            if not value.steps:
                return base.origin
            if base.generation == 0 and not lazy:
                return value.node
            return self._replay(base.origin, value.steps, lazy=True)
        value = self.value_of(tensor)
        if value.steps and (base.generation or lazy) and base.exact:
            return self._replay(base.node, value.steps, lazy=True)
        if value.exact:
            return value.node
        if value.steps and not base.exact and base.root is not None:
            # The view itself may overlap; what it is a view of does not.
            return self._replay(self._restride(base.node, base.root), value.steps, lazy=True)
        return self._restride(value.node, value.tensor)

    def _restride(self, node: fx.Node, tensor: torch.Tensor) -> fx.Node:
        """The values of ``node`` in a fresh tensor with the strides of ``tensor``."""
        empty = self.apply(
            aten.empty_strided.default,
            (list(tensor.shape), list(tensor.stride())),
            dtype=tensor.dtype,
            device=tensor.device,
        )
        return self.apply(aten.copy.default, (empty, node))


# Composite operators that stay one node, because eager's own implementation is the fast one.
KEPT_WHOLE = frozenset(
    {aten.linear.default, aten.matmul.default, aten.scaled_dot_product_attention.default}
)


def _read_only(
    func: OpOverload, variant: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of ``variant``, which returns what ``func`` writes for these."""
    args, kwargs = list(args), dict(kwargs)
    if is_out_variant(func):
        for i in info.writes:
            kwargs.pop(info.names[i], None)
        args = args[: len(variant._schema.arguments)]
    add_defaults(func, variant, args, kwargs)
    return args, kwargs


def _freeze(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(list(a) if isinstance(a, (list, tuple)) else a for a in args)


def _same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a is b or (same_sizes(a.shape, b.shape) and same_sizes(a.stride(), b.stride()))


def _moved(value: Value) -> bool:
    """Whether a part of a tensor has been written, and begins a tensor of its own since."""
    now, before = value.node.meta["val"].storage_offset(), value.tensor.storage_offset()
    return value.base.generation > 0 and not same_sizes((now,), (before,))
