"""Hooks that stay Python: backward hooks of modules, gradients kept by tensors other than leaves.

They run in the backward pass, outside of any graph, on the very tensors of the program. So they are
nodes that do to these tensors what eager does, for backends that run such nodes as they are
(``native_nodes``); with others they break the graph. The functions are looked up when the graph
runs: they may be replaced between calls.
"""

from __future__ import annotations

import weakref

import torch
from torch import fx
from torch.utils.hooks import BackwardHook
from torchsmith_guards import Guard, GuardKind

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.higher_order import ops
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, MethodOf, Value
from torchsmith_tracer._src.values.builtins.registry import constructor
from torchsmith_tracer._src.values.constants import NONE
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.modules import ModuleValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.tensor_methods import method

_TABLES = ("_backward_hooks", "_backward_pre_hooks")


def _native(tx: Trace, what: str) -> None:
    """A node follows that only this process can run, and that a backward pass looks at."""
    graph = tx.graph
    if not tx.native_nodes or graph.transforms:
        raise Unsupported("opaque-call", what=f"{what}, which this backend does not take")
    if not graph.hooked:
        tx.journal.assign(graph, "hooked", True)


@method("retain_grad")
def _retain(tx: Trace, tensor: TensorValue, /) -> Value:
    fake = tensor.fake
    if not fake.requires_grad:
        raise Unsupported("tensor-attribute", what="retain_grad", tensor=tensor.describe())
    if not fake.is_leaf:
        _native(tx, "Tensor.retain_grad")
        tx.graph.need_history()
        fake.retain_grad()
        tx.graph.add_call("call_method", "retain_grad", (tensor.node,), {}, None)
    return NONE  # leaves have their gradients anyway


class ModuleHooks(Value):
    """What runs the backward hooks of a module that is being called (``BackwardHook``)."""

    __slots__ = ("node",)
    cls = BackwardHook

    def __init__(self, node: fx.Node) -> None:
        super().__init__(None)
        self.node = node

    def describe(self) -> str:
        return "the backward hooks of a module"

    def getattr(self, tx: Trace, name: str) -> Value:
        if name not in ("setup_input_hook", "setup_output_hook"):
            raise Unsupported("opaque-attribute", what=name, object=self.describe())
        return _Setup(self, name)


class _Setup(MethodOf["ModuleHooks"]):
    """The method that puts identities before, or behind, a module, which the hooks see."""

    __slots__ = ()

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        (given,) = args
        several = given.python_type() is tuple
        if not several and issubclass(given.python_type(), tuple):
            raise Unsupported("opaque-call", what=f"{self.owner.describe()} on a named tuple")
        items = list(tx.interp.unpack(given)) if several else [given]
        places = [i for i, v in enumerate(items) if issubclass(v.python_type(), torch.Tensor)]
        tensors = [v.node for i in places if isinstance(v := items[i], TensorValue)]
        if len(tensors) != len(places):
            raise Unsupported("opaque-call", what=f"{self.owner.describe()} on a tensor object")
        tx.graph.need_history()
        own = (self.owner.node, self.name, len(items), tuple(places), *tensors)
        found = tx.graph.call_nodes(ops.set_up_hooks, own)
        for place, tensor in zip(places, tx.interp.unpack(found), strict=True):
            before = items[place]
            assert isinstance(tensor, TensorValue) and isinstance(before, TensorValue)
            if tensor.fake is not before.fake:
                items[place] = tensor
        return TupleValue(items) if several else items[0]


@constructor(BackwardHook)
def _module_hooks(tx: Trace, module: Value, hooks: Value, pre_hooks: Value) -> Value:
    what = "backward hooks of a module"
    if not isinstance(module, ModuleValue) or module.obj is None or module.source is None:
        raise Unsupported("opaque-call", what=what)
    if any(module.changed_table(tx, name)[1] for name in _TABLES):
        raise Unsupported("opaque-call", what=f"{what} that compiled code has registered")
    _native(tx, what)
    tx.guards.add(Guard(module.source, GuardKind.ID, module.obj, "its hooks run"))
    owner = tx.graph.add_module(weakref.ref(module.obj))
    node = tx.graph.add_call(
        "call_function", ops.module_hooks, (owner,), {}, BackwardHook(None, [], [])
    )
    return ModuleHooks(node)
