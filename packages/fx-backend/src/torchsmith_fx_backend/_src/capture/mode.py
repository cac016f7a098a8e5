"""``ProxyMode``: sees every operator that reaches the dispatcher, runs it, and records a node.

Tensors are looked up by identity in a side table that maps them to the node that produced them.
In-place operators stay in the graph and re-label their first argument, so that later uses come
after the write.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.composites import run_composite
from torchsmith_fx_backend._src.capture.ops import QUERIES, OpInfo, is_factory, op_info
from torchsmith_fx_backend._src.capture.recorder import Recorder, tensors_in
from torchsmith_fx_backend._src.capture.symbols import SYMBOLIC_TYPES
from torchsmith_fx_backend._src.capture.torch_private import (
    DispatchMode,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    active_modes,
    fake_like,
    pytree,
    unset_fake_temporarily,
)
from torchsmith_fx_backend.errors import DataDependentError

aten = torch.ops.aten

Decompositions = Mapping[Any, Callable[..., object]]

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, FakeTensor)
# Known values are kept for tensors of at most this many elements.
_CONSTANT_NUMEL = 1


class ProxyMode(DispatchMode):  # type: ignore[no-untyped-call]
    """Records operators on real or fake tensors.

    Attributes:
        recorder: where nodes go.
        suspended: an inner trace is running, or tracing is switched off: operators just run.
    """

    def __init__(
        self,
        recorder: Recorder,
        fake_mode: FakeTensorMode | None,
        decompositions: Decompositions,
        *,
        error_on_data_dependent: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.suspended = False
        self._fake_mode = fake_mode
        self._value_mode = fake_mode if fake_mode is not None else FakeTensorMode()
        self._rules = decompositions
        self._error_on_data_dependent = error_on_data_dependent
        # Tensors are kept alive by the table, so an id never changes its meaning.
        self._tensors: dict[int, tuple[torch.Tensor, fx.Node]] = {}
        self._constants: dict[int, torch.Tensor] = {}
        self._parameter_names: dict[int, str] = {}
        self._made: Any = None  # what the last operator gave, if that was a factory

    def name_parameters(self, root: torch.nn.Module) -> None:
        """Read parameters and buffers of ``root`` by the names they have there."""
        for name, tensor in [*root.named_parameters(), *root.named_buffers()]:
            self._parameter_names.setdefault(id(tensor), name)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if self.suspended or func in QUERIES or not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        rule = self._rules.get(func)
        if rule is not None:
            with self:
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        info = op_info(func)
        if info.composite:
            with self.decomposing(func):
                return run_composite(func, args, kwargs)
        operands = tensors_in((args, kwargs))
        for operand in operands:
            if type(operand) not in _PLAIN_TENSORS and id(operand) not in self._tensors:
                return NotImplemented
        if info.reads_value:
            constants = self._constant_arguments(operands)
            if constants:
                return self._run_on_constants(func, args, kwargs)
            if (
                self._error_on_data_dependent
                and operands
                and not any(isinstance(t, FakeTensor) for t in operands)
            ):
                raise DataDependentError(op=str(func))
        if func is aten.detach.default and args[0] is self._made:  # by the binding in Python
            result = func(*args)
            self._tensors[id(result)] = (result, self.node_of(args[0]))
            return result
        return self._record(func, info, args, kwargs, operands)

    def _record(
        self,
        func: OpOverload,
        info: OpInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[torch.Tensor],
    ) -> object:
        target = aten.lift_fresh_copy.default if func is aten.lift_fresh.default else func
        node_args = self.map(args)
        node_kwargs = self.map(kwargs)
        known = self._known_result(func, info, args, kwargs, operands)
        result = target(*args, **kwargs)
        node = self.recorder.call(target, node_args, node_kwargs, None, op_info(target).name)
        if info.writes and func._schema.name.endswith("_") and isinstance(args[0], torch.Tensor):
            self._tensors[id(args[0])] = (args[0], node)
            self._constants.pop(id(args[0]), None)
        self.track(result, node, known)
        self._made = result if is_factory(func) else None
        return result

    # Side tables.

    def track(self, value: object, node: fx.Node, known: object = None) -> None:
        """Let ``node`` (and items of it) stand for the tensors and numbers in ``value``."""
        node.meta["val"] = self.snapshot(value)
        if isinstance(value, torch.Tensor):
            node.meta["tensor_meta"] = describe(value)
            self._tensors[id(value)] = (value, node)
            if isinstance(known, torch.Tensor) and known.numel() <= _CONSTANT_NUMEL:
                self._constants[id(value)] = known
            fresh = self.recorder.symbols.bind_tensor(value, node)
            unbacked = {name: (what, axis) for name, what, axis in fresh if name.startswith("u")}
            if unbacked and node.op == "call_function":
                node.meta["unbacked_bindings"] = unbacked
        elif isinstance(value, SYMBOLIC_TYPES):
            self.recorder.symbols.bind(value, node)
            if node.op == "call_function":
                node.meta["unbacked_bindings"] = {str(value): ()}
        elif isinstance(value, (list, tuple)):
            knowns = known if isinstance(known, (list, tuple)) else [None] * len(value)
            for index, (item, item_known) in enumerate(zip(value, knowns)):
                if isinstance(item, (torch.Tensor, list, tuple, *SYMBOLIC_TYPES)):
                    part = self.recorder.graph.call_function(operator.getitem, (node, index))
                    self.track(item, part, item_known)

    def map(self, value: Any) -> Any:
        """``value`` with tensors and symbolic numbers replaced by their nodes."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, (list, tuple)):
            mapped = [self.map(item) for item in value]
            return mapped if isinstance(value, list) else tuple(mapped)
        if isinstance(value, dict):
            return {key: self.map(item) for key, item in value.items()}
        if isinstance(value, SYMBOLIC_TYPES):
            return self.recorder.symbols.lower(value)
        return value

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node that stands for ``tensor``; unknown tensors become attributes of the root."""
        entry = self._tensors.get(id(tensor))
        if entry is not None:
            return entry[1]
        recorder = self.recorder
        name = self._parameter_names.get(id(tensor))
        if name is None:
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            name = recorder.fresh_attribute_name(
                "_param_constant" if is_parameter else "_tensor_constant"
            )
        node = recorder.attribute(name, tensor, self.snapshot(tensor))
        node.meta["tensor_meta"] = describe(tensor)
        self._tensors[id(tensor)] = (tensor, node)
        return node

    def snapshot(self, value: object) -> object:
        """Value metadata: fake tensors that later in-place operators do not change."""
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                return None
            return fake_like(self._value_mode, value, value.storage_offset())
        if isinstance(value, (list, tuple)):
            items = [self.snapshot(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    # Known values.

    def _constant_arguments(self, operands: list[torch.Tensor]) -> bool:
        return bool(operands) and all(id(t) in self._constants for t in operands)

    def _run_on_constants(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        known = lambda tensor: self._constants[id(tensor)]
        args, kwargs = pytree.tree_map_only(torch.Tensor, known, (args, kwargs))
        with unset_fake_temporarily(), self.paused():
            return func(*args, **kwargs)

    def _known_result(
        self,
        func: OpOverload,
        info: OpInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[torch.Tensor],
    ) -> object:
        if func is aten.lift_fresh.default:
            tensor = args[0]
            small = not isinstance(tensor, FakeTensor) and tensor.numel() <= _CONSTANT_NUMEL
            with unset_fake_temporarily(), self.paused():
                return tensor.clone() if small else None
        if info.seeded or not self._constant_arguments(operands):
            return None
        if any(isinstance(value, SYMBOLIC_TYPES) for value in args):
            return None
        return self._run_on_constants(func, args, kwargs)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Run operators without recording them."""
        before, self.suspended = self.suspended, True
        try:
            yield
        finally:
            self.suspended = before

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Record what runs inside; traces further out are paused meanwhile."""
        with disable_tracing(), self:
            yield


@contextlib.contextmanager
def disable_tracing() -> Iterator[None]:
    """Run operators inside without recording them; their results enter the graph as constants."""
    with contextlib.ExitStack() as stack:
        for mode in active_modes():
            if isinstance(mode, ProxyMode):
                stack.enter_context(mode.paused())
        yield


def describe(tensor: torch.Tensor) -> dict[str, object]:
    """The ``tensor_meta`` entry of a node: plain facts for printing and export."""
    strided = tensor.layout is torch.strided
    return {
        "shape": tensor.shape,
        "dtype": tensor.dtype,
        "requires_grad": tensor.requires_grad,
        "stride": tensor.stride() if strided else (),
        "device": tensor.device,
        "layout": tensor.layout,
    }
