"""Hooks on tensors: ``register_hook``, ``register_post_accumulate_grad_hook``.

A hook on a tensor of the trace is traced into a body of its own, which the graph registers. It runs
in the backward pass, so what it reads must be as it was: a body that has an effect, or that depends
on more of the world than code, or on variables and objects of traced code that may change, is a
break. A hook on a leaf from outside sees all of its gradient,
so it is the function itself that is registered, after the graph.
"""

from __future__ import annotations

import types
from collections.abc import Callable

import torch
from torch import fx
from torch.utils.hooks import RemovableHandle
from torchsmith_guards import GuardKind

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.effects.journal import exists
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.higher_order import ops
from torchsmith_tracer._src.higher_order.effects import grad_mode, in_backward, without_effects
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values import functions
from torchsmith_tracer._src.values.base import MethodOf, Value
from torchsmith_tracer._src.values.builtins.weak import reachable
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.namespaces import NamespaceValue, PyModuleValue
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.tensor_methods import method

_CODE = (GuardKind.ID, GuardKind.TYPE, GuardKind.CODE, GuardKind.HASATTR, GuardKind.DICT_CONTAINS)
_CODE_VALUES = (functions.FunctionValue, functions.BuiltinValue, ClassValue, PyModuleValue)
_PARTS = (functions.BoundMethodValue, NamespaceValue, TupleValue)  # what they lead to counts
_DATA = (TensorValue, ConstantValue, SymNumValue)
_OF_FUNCTIONS = ("__defaults__", "__kwdefaults__", "__closure__")


class HookHandle(Value):
    """What registering a hook gives.

    Attributes:
        node: what registers it in the graph; None when that happens after the graph.
        made: the handle of the fake tensor's hook.
        later: the method, the tensor and the function that are called after the graph.
        removed: whether traced code has removed it.
    """

    __slots__ = ("later", "made", "node", "removed")
    cls = RemovableHandle

    def __init__(
        self,
        *,
        node: fx.Node | None = None,
        made: RemovableHandle | None = None,
        later: tuple[Callable[..., object], Value, Value] | None = None,
    ) -> None:
        super().__init__(None)
        self.node, self.made, self.later = node, made, later
        self.removed = False

    def describe(self) -> str:
        return "the handle of a hook that is in the graph"

    def getattr(self, tx: Trace, name: str) -> Value:
        if name != "remove":
            raise Unsupported("opaque-attribute", what=name, object=self.describe())
        return _Remove(self, name)

    def remove(self, tx: Trace) -> None:
        """``handle.remove()``; once more does nothing."""
        if self.removed:
            return
        tx.journal.assign(self, "removed", True)
        if self.later is not None:
            effects = tx.journal.effects
            at = effects.index(self)
            del effects[at]
            tx.journal.record(lambda: effects.insert(at, self))
            return
        assert self.made is not None
        tx.graph.add_call("call_method", "remove", (self.node,), {}, None)
        hooks, number = self.made.hooks_dict_ref(), self.made.id
        assert hooks is not None
        hook = hooks[number]
        self.made.remove()
        tx.graph.record(lambda: hooks.__setitem__(number, hook))

    def reconstruct(self, cg: Emitter) -> str:
        if self.later is None:
            raise Unsupported("cannot-rebuild", what=self.describe())
        return cg.call(ops.numbered_apart, cg.call(*self.later))

    def reconstruct_fill(self, cg: Emitter) -> None:
        if self.removed:
            cg.statement(cg.method(self, "remove"))


class _Remove(MethodOf["HookHandle"]):
    """``handle.remove``."""

    __slots__ = ()
    cls = types.MethodType

    def call(self, tx: Trace, args: object, kwargs: object) -> Value:
        self.owner.remove(tx)
        return NONE


def refuse_pending(tx: Trace) -> None:
    """A backward pass in the graph would not see the hooks that are registered after it, and
    those of modules, which may do anything, would not see the effects that come before it.

    Raises:
        Unsupported: there are some.
    """
    if tx.graph.hooked or any(isinstance(effect, HookHandle) for effect in tx.journal.effects):
        raise Unsupported("opaque-call", what="a backward pass that runs hooks")


@method("register_hook")
def _register(tx: Trace, tensor: TensorValue, /, hook: Value) -> Value:
    if not tensor.fake.requires_grad:
        message = "cannot register a hook on a tensor that doesn't require gradient"
        raise tx.interp.error(RuntimeError, message)
    if tensor.fake.is_leaf and tensor.source is not None:
        return _later(tx, torch.Tensor.register_hook, tensor, hook)
    if tensor.source is not None or tx.graph.transforms:
        raise Unsupported("tensor-attribute", what="register_hook", tensor=tensor.describe())
    try:
        return _in_graph(tx, tensor, hook)
    except Unsupported:
        if tx.native_nodes:
            tx.graph.watched[tensor.node] = ops.watched
        raise


@method("register_post_accumulate_grad_hook")
def _register_post(tx: Trace, tensor: TensorValue, /, hook: Value) -> Value:
    if not (tensor.fake.requires_grad and tensor.fake.is_leaf and tensor.source is not None):
        raise Unsupported("tensor-attribute", what="such a hook", tensor=tensor.describe())
    return _later(tx, torch.Tensor.register_post_accumulate_grad_hook, tensor, hook)


def _later(
    tx: Trace, register: Callable[..., object], tensor: TensorValue, hook: Value
) -> HookHandle:
    handle = HookHandle(later=(register, tensor, hook))
    tx.journal.effects.append(handle)
    tx.journal.record(tx.journal.effects.pop)
    return handle


def _in_graph(tx: Trace, tensor: TensorValue, hook: Value) -> HookHandle:
    graph, known = tx.graph, len(tx.guards)
    what = "a hook of a tensor, which runs in the backward pass,"
    if _may_change(tx, hook):
        raise Unsupported("opaque-call", what=f"{what} and reads what may have changed then")
    with graph.fake.mode, torch.no_grad():
        fake = torch.empty_like(tensor.fake)
    body = graph.open_body()
    grad = body.input(fake)
    assert isinstance(grad, TensorValue)
    node = grad.node
    with grad_mode(tx, False), without_effects(tx, what, [hook]), in_backward(what):
        result = tx.interp.call(hook, [grad])
    for guard in list(tx.guards)[known:]:
        if guard.kind not in _CODE and not guard.source.expr.endswith(_OF_FUNCTIONS):
            raise Unsupported("opaque-call", what=f"{what} and reads {guard.source.expr} then")
    if grad.node is not node:
        raise Unsupported("body-effect", what=what)
    if not tx.interp.is_none(result) and not _fits(result, fake):
        raise Unsupported("opaque-call", what=f"{what} and gives something else than a gradient")
    closed = body.close([] if tx.interp.is_none(result) else [result])
    fakes = [operand.meta["example_value"] for operand in closed.operands]
    made = ops.register_hook(tensor.fake, closed.module, *fakes)
    RemovableHandle.next_id -= 1  # the program may have read it
    graph.record(made.remove)
    args = (tensor.node, graph.add_module(closed.module), *closed.operands)
    return HookHandle(
        node=graph.add_call("call_function", ops.register_hook, args, {}, made), made=made
    )


def _may_change(tx: Trace, hook: Value) -> bool:
    """Whether a hook leads to what may be something else by the time that it runs: variables that
    are stored to, globals, what is in objects."""
    found: dict[int, object] = {}
    reachable(tx, [hook], lambda v: type(found.setdefault(id(v), v)) is not NamespaceValue)
    for value in found.values():
        if isinstance(value, functions.CellValue):
            frames = ((f, name) for f in tx.frames for name, c in f.cells.items() if c is value)
            if any(frame.stores(name) for frame, name in frames):
                return True
            if exists(value) and not isinstance(value.load(tx), _CODE_VALUES):
                return True
        elif isinstance(value, functions.FunctionValue):
            globals_ = [value.globals.lookup(tx, name) for name in value.reads()]
            if any(v is not None and not isinstance(v, _CODE_VALUES) for v in globals_):
                return True
        elif isinstance(value, Value) and not isinstance(value, _CODE_VALUES + _PARTS + _DATA):
            return True
    return False


def _fits(result: Value, fake: torch.Tensor) -> bool:
    """Whether autograd takes the result for a gradient as it is."""
    return isinstance(result, TensorValue) and (
        (result.fake.shape, result.fake.dtype, result.fake.device)
        == (fake.shape, fake.dtype, fake.device)
    )
