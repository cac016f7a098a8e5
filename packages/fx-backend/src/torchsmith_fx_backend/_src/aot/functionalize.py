"""From a captured graph to a functional graph of primitive operators, in one pass.

In comes a graph module as a tracer makes it: torch functions, methods, in-place operations, fake or
real example inputs. Out goes a flat graph: the same placeholders, aten operators without writes,
then ``copy_`` of new values into written inputs, then one flat tuple of outputs that keep eager's
strides, aliases and identities.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torchsmith_guards as guards
from torch import fx

from torchsmith_fx_backend._src.aot import data
from torchsmith_fx_backend._src.aot.attention import Attention
from torchsmith_fx_backend._src.aot.draws import untouched_generators
from torchsmith_fx_backend._src.aot.floats import FloatCalls
from torchsmith_fx_backend._src.aot.functional import FunctionalMode, Rule
from torchsmith_fx_backend._src.capture.composites import above_autograd, run_composite
from torchsmith_fx_backend._src.capture.recorder import LazyGraphModule, Recorder
from torchsmith_fx_backend._src.capture.symbols import SYMBOLIC_TYPES
from torchsmith_fx_backend._src.capture.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    below_autograd,
    fake_like,
    fake_mode_of,
    no_autocast_cache,
    pytree,
)
from torchsmith_fx_backend._src.captured import example_of, is_foreign, is_symbolic, named_tensors
from torchsmith_fx_backend.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class FunctionalGraph:
    """A functional graph and how its flat outputs form the original result.

    Attributes:
        module: the graph. Each node's ``meta["val"]`` describes its value.
        out_spec: structure of the result.
        static: no size is symbolic.
        mutated: positions of inputs that the graph writes.
        frozen: inputs that are Python values, which the graph has as literals, by position.
    """

    module: fx.GraphModule
    out_spec: Any
    static: bool
    mutated: tuple[int, ...]
    frozen: tuple[tuple[int, object], ...]


def functionalize(
    program: fx.GraphModule | Callable[..., object],
    inputs: Sequence[object],
    rules: Mapping[Any, Rule],
) -> FunctionalGraph:
    """Record ``program`` on ``inputs`` as a functional graph.

    Args:
        program: a captured graph, or a Python function.
        inputs: one per placeholder (or argument): real or fake tensors, symbolic ints, Python
            values. A placeholder whose ``meta`` holds a fake tensor as ``example_value`` or
            ``val`` uses that.
        rules: decompositions.

    Raises:
        UnsupportedError: the graph does something that has no functional form here.
    """
    trace = begin(program, inputs, rules)
    mode, recorder = trace.mode, trace.recorder
    with torch.no_grad(), below_autograd():
        result = execute(program, trace)
    recorder.follow(None)
    leaves, out_spec = pytree.tree_flatten(result)
    with trace.fake_mode, below_autograd(), torch.no_grad():
        mode.write_back()
        mode.share([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
        outputs: Any = [_output(mode, recorder, leaf) for leaf in leaves]
    recorder.graph.output(tuple(outputs))
    module = LazyGraphModule(recorder.root(), recorder.graph)
    written = {n.args[0] for n in recorder.graph.nodes if n.target is _COPY}
    return FunctionalGraph(
        module=module,
        out_spec=out_spec,
        static=trace.static,
        mutated=tuple(i for i, node in enumerate(trace.nodes) if node in written),
        frozen=trace.frozen,
    )


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace whose inputs are known to the recording mode, before the program runs.

    Attributes:
        recorder: the graph.
        mode: records into it.
        fake_mode: what the stand-ins belong to.
        static: no size is symbolic, that of no result either.
        values: what the program is called with.
        nodes: the placeholder of each.
        frozen: inputs that are Python values, which the graph has as literals, by position.
        exact_draws: random numbers shall be those of eager.
    """

    recorder: Recorder
    mode: FunctionalMode
    fake_mode: FakeTensorMode
    static: bool
    values: tuple[Any, ...]
    nodes: tuple[fx.Node, ...]
    frozen: tuple[tuple[int, object], ...]
    exact_draws: bool = False


def begin(
    program: fx.GraphModule | Callable[..., object],
    inputs: Sequence[object],
    rules: Mapping[Any, Rule],
    stand_in: Callable[[torch.Tensor, FakeTensor], FakeTensor] = lambda example, fake: fake,
) -> Trace:
    """Make stand-ins and placeholders for ``inputs``.

    Args:
        program: as for ``functionalize``.
        inputs: as for ``functionalize``.
        rules: decompositions.
        stand_in: what the program gets for an example instead of the fake tensor of its layout.

    Raises:
        UnsupportedError: an input is of a kind that is not compiled.
    """
    names, examples = _examples(program, inputs)
    fake_mode = _find_fake_mode(examples)
    from_data = getattr(fake_mode.shape_env, "has_unbacked", False)
    static = not from_data and not any(is_symbolic(value) for value in examples)
    if not static and any(map(is_foreign, examples)):
        raise UnsupportedError(what="a size that is a symbol of another library")
    recorder = Recorder()
    if isinstance(fake_mode.shape_env, guards.ShapeEnv):
        recorder.symbols.environment = fake_mode.shape_env
    mode = FunctionalMode(recorder, fake_mode, rules, static)
    if isinstance(program, torch.nn.Module):
        mode.name_tensors(named_tensors(program))
    values: list[Any] = []
    fakes: dict[int, FakeTensor] = {}
    nodes: list[fx.Node] = []
    frozen: list[tuple[int, object]] = []
    for index, (name, example) in enumerate(zip(names, examples)):
        if isinstance(example, torch.Tensor):
            fake = fakes.get(id(example))
            known = fake is not None
            if fake is None:  # one tensor passed twice is one tensor: the first place counts
                given: Any = inputs[index]  # not the example, whom a tracer's writes give histories
                fake = stand_in(given, _fresh_fake(example, fake_mode))
                fakes[id(example)] = fake
            node = recorder.placeholder(name, fake)
            if not known:
                mode.add_root(fake, node)
            values.append(fake)
        else:
            node = recorder.placeholder(name, example)
            if isinstance(example, SYMBOLIC_TYPES):
                recorder.symbols.bind(example, node)
            else:
                frozen.append((index, example))
            values.append(example)
        nodes.append(node)
    return Trace(recorder, mode, fake_mode, static, tuple(values), tuple(nodes), tuple(frozen))


def execute(program: fx.GraphModule | Callable[..., object], trace: Trace) -> Any:
    """Run ``program`` under the recording mode and return its result.

    Raises:
        UnsupportedError: it does something that has no functional form here.
    """
    grad_mode = torch.is_grad_enabled()
    try:
        with (
            untouched_generators(), no_autocast_cache(), guards.without_saving_hooks(),
            trace.fake_mode, trace.mode,
        ):  # fmt: skip
            if isinstance(program, fx.GraphModule):
                return _Run(program, trace).run(trace.values)
            return program(*trace.values)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise UnsupportedError(
            what=f"a result that depends on tensor contents ({error})"
        ) from error
    finally:
        torch.set_grad_enabled(grad_mode)


_COPY = torch.ops.aten.copy_.default


class _Run:
    """Executes the nodes of a captured graph under the recording mode."""

    def __init__(self, gm: fx.GraphModule, trace: Trace) -> None:
        self.gm = gm
        self.mode = trace.mode
        self.recorder = trace.recorder
        self.static = trace.static
        self.attend = Attention(trace.mode, exact_draws=trace.exact_draws)
        self.compose = FloatCalls(trace.mode, exact_draws=trace.exact_draws)

    def run(self, inputs: Sequence[Any]) -> Any:
        env: dict[fx.Node, Any] = {}
        remaining = iter(inputs)
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(remaining)
            elif node.op == "get_attr":
                env[node] = self._attribute(str(node.target))
            elif node.op == "output":
                return _plain(fx.node.map_arg(node.args[0], env.__getitem__))
            else:
                self.recorder.follow(node)
                args = fx.node.map_arg(node.args, env.__getitem__)
                kwargs = fx.node.map_arg(node.kwargs, env.__getitem__)
                try:
                    env[node] = self._execute(node, args, kwargs)
                except Exception as error:
                    error.add_note(f"while compiling the graph node {node.format_node()}")
                    error.node = node  # type: ignore[attr-defined]
                    raise
        raise UnsupportedError(what="a graph without an output node")

    def _execute(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        if target is setattr and args[1] == "data":
            return data.assign(self.mode, args[0], args[2])
        if target is getattr and args[1] == "data":
            return data.read(self.mode, args[0])
        if not self.static and (made := self.compose(target, args, kwargs)) is not NotImplemented:
            return made
        if target is torch.nn.functional.scaled_dot_product_attention:
            return self.attend(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        if node.op == "call_module":
            return self.gm.get_submodule(target)(*args, **kwargs)
        if isinstance(target, HigherOrderOperator):
            raise UnsupportedError(what=f"the higher-order operator {target}")
        composite = above_autograd(target, args)
        if composite is not None:
            return run_composite(composite, args, kwargs)
        return target(*args, **kwargs)

    def _attribute(self, path: str) -> Any:
        value = operator.attrgetter(path)(self.gm)
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            return self.mode.adopt(value)
        return value


def _plain(value: Any) -> Any:
    """A result in the containers that the graph's code makes, which its nodes have immutable."""
    if isinstance(value, fx.immutable_collections.immutable_dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, fx.immutable_collections.immutable_list):
        return [_plain(item) for item in value]
    return tuple(map(_plain, value)) if type(value) is tuple else value


def _examples(program: object, inputs: Sequence[object]) -> tuple[list[str], list[object]]:
    if not isinstance(program, fx.GraphModule):
        return [f"arg{i}" for i in range(len(inputs))], list(inputs)
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    names = [str(node.target).replace(".", "_").lstrip("*") for node in placeholders]
    return names, [example_of(node, value) for node, value in zip(placeholders, inputs)]


def _find_fake_mode(examples: Sequence[object]) -> FakeTensorMode:
    for example in examples:
        found = fake_mode_of(example) if isinstance(example, torch.Tensor) else None
        if found is not None:
            return found
    # With numbers alone, tensors are made whose sizes belong to the environment of those.
    symbols = [x for x in examples if isinstance(x, SYMBOLIC_TYPES)]
    env = next((getattr(x.node, "shape_env", None) for x in symbols), None)
    return guards.FakeMode(env if isinstance(env, guards.ShapeEnv) else None).mode


def _fresh_fake(tensor: torch.Tensor, mode: FakeTensorMode) -> FakeTensor:
    if tensor.layout is not torch.strided or type(tensor) not in _TENSOR_TYPES:
        raise UnsupportedError(what=f"an input of type {type(tensor).__name__} ({tensor.layout})")
    if tensor.is_neg():
        raise UnsupportedError(what="an input with a lazy negation")
    fake = fake_like(mode, tensor)
    if tensor.is_conj():
        with mode:
            fake = cast(FakeTensor, torch.conj(fake))
    return fake


_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)


def _output(mode: FunctionalMode, recorder: Recorder, leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return mode.output(leaf)
    if isinstance(leaf, SYMBOLIC_TYPES):
        return recorder.symbols.lower(leaf)
    return leaf
