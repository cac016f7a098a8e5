"""Compare a program's functional graph with the program itself, in every observable way."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torchsmith_guards as guards
from torch import fx
from torch.utils import _pytree as pytree
from torchsmith_fx_backend._src.aot.functionalize import FunctionalGraph, functionalize
from torchsmith_fx_backend._src.capture.ops import Effect, op_info
from torchsmith_fx_backend._src.capture.rules import RULES
from torchsmith_fx_backend._src.passes.base import WRITERS

aten = torch.ops.aten


def copies(inputs: Sequence[Any]) -> list[Any]:
    """Equal inputs with equal layouts; inputs that are the same object stay the same object."""
    memo: dict[int, Any] = {}
    return [memo.setdefault(id(x), _copy(x)) for x in inputs]


def _copy(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return copy.deepcopy(x)
    storage_size = x.untyped_storage().nbytes() // x.element_size()
    flat = torch.as_strided(x.detach(), (storage_size,), (1,), 0).clone()
    return torch.as_strided(flat, x.size(), x.stride(), x.storage_offset())


def assert_functional(graph: FunctionalGraph) -> None:
    """No writes but ``copy_`` into inputs and attributes, after everything that computes."""
    copying = False
    for node in graph.module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target is aten.copy_.default:
            assert node.args[0].op in ("placeholder", "get_attr"), node.format_node()
            copying = True
            continue
        if node.target in WRITERS and node.args[0].op == "placeholder":
            continue  # the pass that writes in place was among the transforms
        info = op_info(node.target)
        assert info.effect in (Effect.NONE, Effect.VIEW), node.format_node()
        if copying:
            assert info.effect is Effect.VIEW, f"computes after writing back: {node.format_node()}"


def assert_metadata(graph: FunctionalGraph, inputs: Sequence[Any]) -> None:
    """Each node's ``val`` describes what the node really computes."""

    class Checker(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            result = super().run_node(node)
            if isinstance(result, torch.Tensor) and node.op == "call_function":
                value = node.meta["val"]
                label = node.format_node()
                assert tuple(result.shape) == tuple(value.shape), label
                assert result.dtype == value.dtype, label
                assert result.device == value.device, label
                if result.numel():
                    real = [s for s, n in zip(result.stride(), result.shape) if n != 1]
                    said = [s for s, n in zip(value.stride(), value.shape) if n != 1]
                    assert real == said, f"{label}: {real} != {said}"
            return result

    with torch.no_grad():
        Checker(graph.module, garbage_collect_values=False).run(*inputs)


def aliases(inputs: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[Any, ...]]:
    """For each output: the inputs and earlier outputs it is, and those it shares memory with."""
    found = []
    everything = [*inputs, *outputs]
    for i, out in enumerate(outputs):
        if not isinstance(out, torch.Tensor):
            found.append(("value", out))
            continue
        before = everything[: len(inputs) + i]
        same = tuple(j for j, t in enumerate(before) if t is out)
        shares = tuple(
            j
            for j, t in enumerate(before)
            if isinstance(t, torch.Tensor)
            and out.numel()
            and t.numel()
            and t.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
        )
        offset = out.storage_offset() if shares else None
        found.append((same, shares, offset))
    return found


def capture(fn: Callable[..., Any], inputs: Sequence[Any], **kwargs: Any) -> FunctionalGraph:
    """The functional graph of ``fn``, with all decompositions."""
    return functionalize(fn, inputs, kwargs.get("rules", RULES))


def check(
    fn: Callable[..., Any],
    *inputs: Any,
    rules: Any = RULES,
    rtol: float | None = None,
    atol: float | None = None,
    transform: Callable[[fx.GraphModule], Any] | None = None,
    seeded: bool = False,
) -> FunctionalGraph:
    """Assert that the functional graph of ``fn`` does what ``fn`` does; return the graph."""
    eager_in, ours_in, checked_in = copies(inputs), copies(inputs), copies(inputs)
    graph = functionalize(fn, inputs, rules)
    assert_functional(graph)
    if transform is not None:
        transform(graph.module)
        assert_functional(graph)
    if not seeded:
        assert_metadata(graph, checked_in)
    torch.manual_seed(0)
    with torch.no_grad():
        expected = fn(*eager_in)
    torch.manual_seed(0)
    with torch.no_grad():
        flat = fx.Interpreter(graph.module).run(*ours_in)
    actual = pytree.tree_unflatten(list(flat), graph.out_spec)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    actual_leaves, actual_spec = pytree.tree_flatten(actual)
    assert expected_spec == actual_spec
    compare(expected_leaves, actual_leaves, rtol, atol)
    compare(eager_in, ours_in, rtol, atol)
    assert aliases(eager_in, expected_leaves) == aliases(ours_in, actual_leaves)
    return graph


def check_symbolic(
    fn: Callable[..., Any], *inputs: Any, rtol: float, atol: float
) -> FunctionalGraph:
    """As ``check``, with a graph recorded for symbolic sizes."""
    env = guards.ShapeEnv()
    mode = guards.FakeMode(env)
    fakes = [
        mode.fakeify(x, guards.LocalSource(f"a{i}"), set(range(x.dim())))
        if isinstance(x, torch.Tensor)
        else x
        for i, x in enumerate(inputs)
    ]
    graph = functionalize(fn, fakes, RULES)
    assert_functional(graph)
    eager_in, ours_in = copies(inputs), copies(inputs)
    with torch.no_grad():
        expected = fn(*eager_in)
        flat = fx.Interpreter(graph.module).run(*ours_in)
    actual = pytree.tree_leaves(pytree.tree_unflatten(list(flat), graph.out_spec))
    expected_leaves = pytree.tree_leaves(expected)
    compare(expected_leaves, actual, rtol, atol)
    compare(eager_in, ours_in, rtol, atol)
    assert aliases(eager_in, expected_leaves) == aliases(ours_in, actual)
    return graph


def compare(
    expected: Sequence[Any], actual: Sequence[Any], rtol: float | None, atol: float | None
) -> None:
    """Assert equal values, dtypes and strides."""
    assert len(expected) == len(actual)
    for e, a in zip(expected, actual):
        if isinstance(e, torch.Tensor):
            assert isinstance(a, torch.Tensor), (e, a)
            assert e.dtype == a.dtype, (e.dtype, a.dtype)
            assert e.shape == a.shape, (e.shape, a.shape)
            if e.numel():
                assert e.stride() == a.stride(), (e.shape, e.stride(), a.stride())
            torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)
        else:
            assert type(e) is type(a) and (e == a or e != e), (e, a)
