"""``make_fx``: from a Python function and example inputs to a graph of primitive operators."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torchsmith_guards as guards
from torch import fx

from torchsmith_fx_backend._src.capture.mode import Decompositions, ProxyMode
from torchsmith_fx_backend._src.capture.recorder import Recorder
from torchsmith_fx_backend._src.capture.torch_private import (
    FakeTensorMode,
    enable_python_dispatcher,
    fake_mode_of,
    no_autocast_cache,
    pytree,
    pytree_codegen,
)
from torchsmith_fx_backend.errors import TracingModeError

_MODES = ("real", "fake", "symbolic")


def make_fx(
    fn: Callable[..., object],
    decomposition_table: Mapping[Any, Callable[..., object]] | None = None,
    tracing_mode: str = "real",
    *,
    _allow_non_fake_inputs: bool = False,
    _error_on_data_dependent_ops: bool = True,
) -> Callable[..., fx.GraphModule]:
    """Make a tracer of ``fn``: called with example inputs, it returns the recorded graph.

    The graph holds primitive operators only, autograd included (a gradient taken inside ``fn``
    shows as operators), for the one path through ``fn`` that these inputs take. In-place operators
    stay as they are.

    Args:
        fn: a function or module of positional arguments: tensors, numbers, nested containers.
        decomposition_table: operator overload -> Python function that replaces it. A rule returns
            ``NotImplemented`` to decline.
        tracing_mode: ``real`` runs on the given tensors; ``fake`` on stand-ins without data, with
            the same sizes; ``symbolic`` on stand-ins whose sizes other than 0 and 1 are symbols, so
            that the graph is right for other sizes, too.
        _allow_non_fake_inputs: let real tensors that ``fn`` closes over mix with fake ones.
        _error_on_data_dependent_ops: refuse ``.item()`` on real tensors instead of recording the
            number it gives now.

    Returns:
        A function of example inputs that returns a ``GraphModule`` with the calling structure of
        ``fn``. Each node's ``meta["val"]`` describes its value. A symbolic trace's module has the
        attribute ``shape_env``.

    Raises:
        TracingModeError: ``tracing_mode`` is not one of the three.
    """
    if tracing_mode not in _MODES:
        raise TracingModeError(mode=tracing_mode)
    table = dict(decomposition_table or {})

    def wrapped(*args: object) -> fx.GraphModule:
        return _trace(
            fn, args, table, tracing_mode, _allow_non_fake_inputs, _error_on_data_dependent_ops
        )

    if hasattr(fn, "__name__"):
        functools.update_wrapper(wrapped, fn, assigned=("__name__", "__qualname__", "__doc__"))
        del wrapped.__wrapped__  # type: ignore[attr-defined]  # the signature is *args
    return wrapped


def _trace(
    fn: Callable[..., object],
    args: tuple[object, ...],
    table: Decompositions,
    tracing_mode: str,
    allow_non_fake: bool,
    error_on_data_dependent: bool,
) -> fx.GraphModule:
    leaves, in_spec = pytree.tree_flatten(args)
    fake_mode, shape_env = _fake_mode_for(leaves, tracing_mode, allow_non_fake)
    inputs = _convert_inputs(leaves, tracing_mode, fake_mode, shape_env)
    recorder = Recorder()
    fakes = fake_mode.mode if isinstance(fake_mode, guards.FakeMode) else fake_mode
    mode = ProxyMode(recorder, fakes, table, error_on_data_dependent=error_on_data_dependent)
    if isinstance(fn, torch.nn.Module):
        mode.name_parameters(fn)
    nested = any(isinstance(arg, (list, tuple, dict)) for arg in args)
    names = _input_names(fn, len(leaves), nested=nested)
    for name, value in zip(names, inputs):
        mode.track(value, recorder.placeholder(name, value))
    with contextlib.ExitStack() as stack:
        if fakes is not None:
            stack.enter_context(fakes)
        if tracing_mode == "symbolic":
            stack.enter_context(enable_python_dispatcher())
        stack.enter_context(no_autocast_cache())
        stack.enter_context(mode.tracing())
        result = fn(*pytree.tree_unflatten(inputs, in_spec))
    out_leaves, out_spec = pytree.tree_flatten(result)
    outputs: Any = [mode.map(leaf) for leaf in out_leaves]
    flat = type(result) in (list, tuple) and all(c.is_leaf() for c in out_spec.children())
    if nested or not (flat or out_spec.is_leaf()):
        arguments = pytree.tree_flatten((tuple(args), {}))[1]
        positions = [f"arg{i}" for i in range(len(args))]
        recorder.graph.set_codegen(pytree_codegen(positions, arguments, out_spec))
        recorder.graph.output(outputs)
    elif out_spec.is_leaf():
        recorder.graph.output(outputs[0])
    else:
        recorder.graph.output(tuple(outputs) if type(result) is tuple else outputs)
    module = fx.GraphModule(recorder.root(), recorder.graph, _class_name(fn))
    if shape_env is not None:
        module.shape_env = shape_env
    return module


def _fake_mode_for(
    leaves: Sequence[object], tracing_mode: str, allow_non_fake: bool
) -> tuple[Any, Any]:
    """The fake mode to trace under, and the shape environment that the result exposes."""
    if tracing_mode == "real":
        return None, None
    for leaf in leaves:
        found = fake_mode_of(leaf) if isinstance(leaf, torch.Tensor) else None
        if found is not None:
            env: Any = found.shape_env
            if tracing_mode == "symbolic" and env is None:
                raise TracingModeError(mode="symbolic with fake inputs that have no ShapeEnv")
            return found, env if tracing_mode == "symbolic" else None
    env = guards.ShapeEnv()
    fake = guards.FakeMode(env)
    fake.mode.allow_non_fake_inputs = allow_non_fake
    return fake, env if tracing_mode == "symbolic" else None


def _convert_inputs(
    leaves: Sequence[object], tracing_mode: str, fake_mode: Any, shape_env: Any
) -> list[object]:
    if tracing_mode == "real" or isinstance(fake_mode, FakeTensorMode):
        return list(leaves)
    converted: list[object] = []
    for index, leaf in enumerate(leaves):
        source = guards.LocalSource(f"arg{index}")
        if isinstance(leaf, torch.Tensor):
            dims = set(range(leaf.dim())) if tracing_mode == "symbolic" else None
            converted.append(fake_mode.fakeify(leaf, source, dims))
        elif tracing_mode == "symbolic" and type(leaf) is int:
            converted.append(shape_env.create_symbol(leaf, source, "dynamic"))
        else:
            converted.append(leaf)
    return converted


def _input_names(fn: Callable[..., object], count: int, *, nested: bool) -> list[str]:
    """Placeholder names: the parameters' own where there is one tensor for each."""
    named: list[str] = []
    if not nested and not isinstance(fn, torch.nn.Module):
        one = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        with contextlib.suppress(TypeError, ValueError):  # functions without a signature
            parameters = inspect.signature(fn).parameters.values()
            named = [p.name for p in parameters if p.kind in one][:count]
    return [f"{name}_1" for name in (*named, *(f"arg{i}" for i in range(count - len(named))))]


def _class_name(fn: Callable[..., object]) -> str:
    if isinstance(fn, torch.nn.Module):
        return type(fn).__name__
    name = getattr(fn, "__name__", "GraphModule")
    return name if name.isidentifier() else "GraphModule"
