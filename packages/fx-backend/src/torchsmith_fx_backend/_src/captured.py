"""What a captured graph says before it is compiled: of its inputs and of its own tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator

import torch
import torchsmith_guards as guards
from torch import fx

from torchsmith_fx_backend._src.capture.symbols import SYMBOLIC_TYPES
from torchsmith_fx_backend._src.capture.torch_private import FakeTensor

WRITES = "torchsmith_writes"  # in a ``copy_`` node's meta: how often eager writes the input
# In the meta of a placeholder: callers give the value away, and whether nobody else holds it.
GIVEN = "given"


def is_boxed(graph: fx.Graph) -> bool:
    """Whether callers of ``graph`` give its inputs away."""
    return any(GIVEN in node.meta for node in graph.find_nodes(op="placeholder"))


def example_of(node: fx.Node, value: object) -> object:
    """What the placeholder ``node`` stands for when it is given ``value``."""
    for key in ("example_value", "val"):
        known = node.meta.get(key)
        if isinstance(known, (FakeTensor, *SYMBOLIC_TYPES)):
            return known
    return value


def is_symbolic(value: object) -> bool:
    if isinstance(value, SYMBOLIC_TYPES):
        return True
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))


def is_foreign(value: object) -> bool:
    """Whether a number, or a size of a tensor, is a symbol of another library (torch.compile's),
    which cannot be lowered."""
    try:
        for symbol in numbers_of(value):
            guards.hint_of(symbol)
    except TypeError:
        return True
    return False


def numbers_of(value: object) -> tuple[object, ...]:
    """A number that is a symbol, or sizes and strides of a tensor that has some."""
    if isinstance(value, SYMBOLIC_TYPES):
        return (value,)
    if isinstance(value, torch.Tensor) and is_symbolic(value):
        return (*value.shape, *value.stride())
    return ()


def untold(values: Iterable[object]) -> list[guards.Symbol]:
    """The symbols that sizes among ``values`` are computed from, but that none of them is."""
    ours = [n for value in values if not is_foreign(value) for n in numbers_of(value)]
    known = [guards.expr_of(n) for n in ours if not isinstance(n, torch.SymBool)]
    free = {symbol for expression in known for symbol in expression.free_symbols}
    return sorted(free.difference(known), key=lambda symbol: symbol.name)


def named_tensors(gm: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, buffers and tensor attributes of ``gm`` and its modules by qualified
    name."""
    named: dict[str, torch.Tensor] = dict(gm.named_parameters(remove_duplicate=False))
    named.update(gm.named_buffers(remove_duplicate=False))
    for prefix, module in gm.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                named.setdefault(f"{prefix}.{name}" if prefix else name, value)
    return named


def attributes_read(gm: fx.GraphModule) -> Iterator[object]:
    """Tensors of ``gm`` itself that its graph reads."""
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            yield operator.attrgetter(str(node.target))(gm)
        elif node.op == "call_module":
            yield from gm.get_submodule(str(node.target)).parameters()
