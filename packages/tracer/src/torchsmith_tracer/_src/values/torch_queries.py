"""Handlers of torch functions that are not operators: queries, checks, state.

A handler takes ``(tx, args, kwargs)``, or below ``handles`` the arguments themselves, and gives
the result, or None to become a graph node.
"""

from __future__ import annotations

import types
from collections.abc import Callable

import torch

from torchsmith_tracer._src import torch_private as private
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.frames.library import is_library
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.builtins.registry import F, misfit
from torchsmith_tracer._src.values.constants import FALSE, NONE, ConstantValue
from torchsmith_tracer._src.values.containers import ListValue, TupleValue
from torchsmith_tracer._src.values.contexts import AutocastValue, GradModeValue
from torchsmith_tracer._src.values.switches import Switch, ask, switch_handler
from torchsmith_tracer._src.values.symnum import SymNumValue, assume, combine, decide
from torchsmith_tracer._src.values.tensor import TensorValue, call_tensor_method
from torchsmith_tracer._src.values.torch_fn import name_of

Handler = Callable[["Trace", Args, Kwargs], Value | None]

_by_id: dict[int, tuple[object, Handler]] = {}
_by_name: dict[tuple[str, str], Handler] = {}


def register(obj: object, handler: Handler) -> None:
    """Give ``obj`` a handler; the same object twice is an error unless it is an alias."""
    known = _by_id.get(id(obj))
    if known is not None and known[1] is not handler:
        raise ValueError(f"{obj!r} has a handler already")
    _by_id[id(obj)] = (obj, handler)


def handles(*objs: object) -> Callable[[F], F]:
    """Register the function below, ``fn(tx, *args, **kwargs)``, as the handler of callables of
    torch. Other arguments than it takes are a break."""

    def add(fn: F) -> F:
        def handler(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
            if misfit(tx, fn, args, kwargs):
                raise Unsupported("opaque-call", what=f"{name_of(objs[0])} with these arguments")
            return fn(tx, *args, **kwargs)

        for obj in objs:
            register(obj, handler)
        return fn

    return add


def register_name(module: str, qualname: str, handler: Handler) -> None:
    """Like ``register``, for functions of modules that this package must not import."""
    _by_name[module, qualname] = handler


def find_handler(obj: object) -> Handler | None:
    """The handler of a torch callable, or None."""
    if (found := _by_id.get(id(obj))) is not None:
        return found[1]
    if isinstance(obj, types.FunctionType) and obj.__module__ is not None:
        if obj.__module__.startswith("torch."):
            # Importing torch's own compiler puts wrappers around some functions.
            if (inner := obj.__dict__.get("__wrapped__")) is not None:
                return find_handler(inner)
            return _by_name.get((obj.__module__, obj.__qualname__))
    return None


def _constant(result: object) -> Handler:
    value = ConstantValue(result)
    return lambda tx, args, kwargs: value


def fold(fn: Callable[..., object]) -> Handler:
    """Run ``fn`` while tracing: its answer is fixed by its arguments, by the machine, or by
    ambient state that every compiled body guards."""

    def answer(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        values = [a.as_constant() for a in args]
        named = {k: v.as_constant() for k, v in kwargs.items()}
        return tx.interp.fold(lambda: fn(*values, **named))

    return answer


def _query(fn: Callable[..., object]) -> Handler:
    """Ask ``fn`` while tracing and at each check: it reads other state of the process."""

    def answer(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        if kwargs or not all(a.is_constant() for a in args):
            return None
        # Inside a traced autocast the answer may be that context's; at the check it is not.
        autocast = any(isinstance(context, AutocastValue) for context in tx.graph.contexts)
        if autocast and "autocast" in getattr(fn, "__name__", ""):
            return fold(fn)(tx, args, kwargs)
        return tx.interp.hosted(ask, tx, fn, *[a.as_constant() for a in args])

    return answer


def _resolve(path: str) -> object:
    obj: object = torch
    for part in path.split("."):
        if (obj := getattr(obj, part, None)) is None:
            return None
    return obj


def _each(paths: str, make: Callable[[Callable[..., object]], Handler]) -> None:
    for path in paths.split():
        obj = _resolve(path)
        if callable(obj) and id(obj) not in _by_id:
            register(obj, make(obj))


_each(
    "is_grad_enabled is_inference_mode_enabled is_autocast_enabled is_autocast_cpu_enabled "
    "get_default_dtype "
    "are_deterministic_algorithms_enabled get_deterministic_debug_mode "
    "promote_types can_cast amp.autocast_mode.is_autocast_available "
    "amp.is_autocast_available "
    "cuda.is_available cuda.device_count cuda.is_bf16_supported cuda.get_device_capability "
    "cuda.get_device_name cuda.get_device_properties "
    "backends.mps.is_available backends.mps.is_built "
    "backends.cuda.is_built backends.cudnn.is_available backends.mkldnn.is_available "
    "backends.openmp.is_available xpu.is_available mps.is_available mtia.is_available "
    "accelerator.is_available accelerator.device_count accelerator.current_accelerator "
    "distributed.is_available",
    fold,
)
_each(
    "is_autocast_cache_enabled get_autocast_dtype get_autocast_gpu_dtype get_autocast_cpu_dtype "
    "is_deterministic_algorithms_warn_only_enabled is_anomaly_enabled is_anomaly_check_nan_enabled "
    "get_num_threads get_num_interop_threads cuda.is_initialized cuda.current_device "
    "distributed.is_initialized",
    _query,
)
_each(private.FOLDED_QUERIES, fold)


def _is_compiled(tx: Trace, args: Args, kwargs: Kwargs) -> Value:
    tx.asked_compiling = True
    return ConstantValue(tx.says_compiling)


for _paths, _answer in (
    ("jit.is_scripting jit.is_tracing compiler.is_exporting " + private.FALSE_QUERIES, False),
    (private.NONE_QUERIES, None),
):
    _each(_paths, lambda fn, answer=_answer: _constant(answer))  # type: ignore[misc]
_each(private.STATE_QUERIES, _query)
_each(private.TRANSFORM_QUERIES, lambda fn: lambda tx, *_: ConstantValue(tx.graph.transforms > 0))
_each("compiler.is_dynamo_compiling " + private.TRUE_QUERIES, lambda fn: _is_compiled)
for _module, _name, _answer in private.QUERIES_BY_NAME:
    register_name(_module, _name, _is_compiled if _answer else _constant(_answer))


@handles(torch.compiler.is_compiling)
def _is_compiling(tx: Trace) -> Value:
    # Calls of modules ask it to leave out, for other compilers, hooks that errors have to call.
    if tx.frames[-1].info.code is private.module_call_impl.__code__:
        return ConstantValue(False)
    return _is_compiled(tx, [], {})


# --- tensors as objects ----------------------------------------------------------------------


@handles(torch.is_tensor)
def _is_tensor(tx: Trace, obj: Value) -> Value:
    return ConstantValue(issubclass(obj.python_type(), torch.Tensor))


@handles(torch.typename)
def _typename(tx: Trace, obj: Value, /) -> Value | None:
    if isinstance(obj, TensorValue):
        return call_tensor_method(tx, obj, "type", [], {})
    return fold(torch.typename)(tx, [obj], {})


def _as_method(name: str) -> Callable[[Callable[..., object]], Handler]:
    def make(fn: Callable[..., object]) -> Handler:
        def call(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
            rest = dict(kwargs)
            tensor = args[0] if args else rest.pop("input", None)
            if isinstance(tensor, TensorValue):
                return call_tensor_method(tx, tensor, name, list(args[1:]), rest)
            return None

        return call

    return make


for _name in "numel is_floating_point is_complex is_signed is_conj is_neg is_inference".split():
    _each(_name, _as_method(_name))


def _refused(kind: str) -> Callable[[Callable[..., object]], Handler]:
    def make(fn: Callable[..., object]) -> Handler:
        def refuse(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
            raise Unsupported(kind, what=f"torch.{getattr(fn, '__name__', '?')}")

        return refuse

    return make


_each("is_nonzero equal allclose", _refused("item"))
_each("quantize_per_tensor", _refused("opaque-call"))  # its fake is a tensor of floats


@handles(torch.result_type)
def _result_type(tx: Trace, *numbers: Value) -> Value:
    values = [a.fake if isinstance(a, TensorValue) else a.as_constant() for a in numbers]
    return ConstantValue(torch.result_type(*values))  # type: ignore[call-overload]


@handles(private.group_tensors)
def _group_tensors(tx: Trace, lists: Value, with_indices: Value = FALSE) -> Value:
    """Optimizers sort their tensors by device and dtype, in the order of a C++ table."""
    values: dict[int, Value] = {}

    def fake(value: Value) -> object:
        if isinstance(value, TensorValue):
            values[id(value.fake)] = value
            return value.fake
        return None if tx.interp.is_none(value) else tx.interp.concrete(value)

    rows = [[fake(v) for v in tx.interp.unpack(row)] for row in tx.interp.unpack(lists)]

    def group(found: object) -> Value:
        if isinstance(found, list):
            return ListValue([group(part) for part in found])
        return values[id(found)] if isinstance(found, torch.Tensor) else tx.interp.const(found)

    groups = tx.interp.hosted(private.group_tensors, rows, tx.interp.concrete(with_indices))
    pairs = [
        (tx.interp.const(key), TupleValue([group(tensors), group(indices)]))
        for key, (tensors, indices) in groups.items()
    ]
    return tx.interp.dict_of(pairs)


# --- symbolic numbers ------------------------------------------------------------------------


def _sym(fn: Callable[..., object]) -> Handler:
    def call(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        if not all(isinstance(a, SymNumValue | ConstantValue) for a in args):
            return None
        numbers = [a.sym if isinstance(a, SymNumValue) else a.as_constant() for a in args]
        return combine(tx, fn, tuple(args), fn(*numbers))

    return call


_each("sym_max sym_min sym_int sym_float sym_not sym_sum", _sym)


@handles(torch.ops.aten.sym_size.int)
def _size_of(tx: Trace, tensor: Value, dim: Value, /) -> Value | None:
    if isinstance(tensor, TensorValue) and dim.is_constant():
        return call_tensor_method(tx, tensor, "size", [dim], {})
    return None


# --- checks and state ------------------------------------------------------------------------


@handles(torch._assert)
def _assert(tx: Trace, condition: Value, message: Value) -> Value:
    if isinstance(condition, TensorValue):
        return assert_tensor(tx, condition)
    if tx.interp.truth(condition):
        return NONE
    raise tx.interp.error(AssertionError, message.as_constant())


@handles(torch._check)
def _check(tx: Trace, cond: Value, message: Value = NONE) -> Value:
    if isinstance(cond, TensorValue):
        raise Unsupported("data-dependent-branch", what=cond.describe())
    if isinstance(cond, SymNumValue) and isinstance(cond.sym, torch.SymBool):
        if decide(cond.sym) is None and assume(tx, cond.sym):
            return NONE
    if tx.interp.truth(cond):
        return NONE
    if tx.interp.is_none(message):
        text: object = (
            "Expected cond to be True, but got False. (Could this error message be improved? "
            "If so, please report an enhancement request to PyTorch.)"
        )
    else:
        text = tx.interp.call(message, []).as_constant()
    raise tx.interp.error(RuntimeError, text)


@handles(torch._check_tensor_all_with)
def _check_tensor(tx: Trace, error_type: Value, cond: Value, message: Value = NONE) -> Value:
    if not isinstance(cond, TensorValue) or cond.fake.dtype is not torch.bool:
        raise Unsupported("opaque-call", what="torch._check_tensor_all_with, which raises")
    return assert_tensor(tx, tx.graph.call_method("all", (cond,)))


def assert_tensor(tx: Trace, condition: Value) -> Value:
    """The graph has the assertion where it can be caught: when it fails, the function runs again
    and raises the user's error."""
    if not isinstance(condition, TensorValue) or condition.fake.device.type == "meta":
        raise Unsupported("data-dependent-branch", what=condition.describe())
    tx.graph.check_later(condition)
    return NONE


@handles(torch._check_is_size)
def _check_is_size(tx: Trace, i: Value, message: Value = NONE, *, max: Value = NONE) -> Value:
    """``torch._check_is_size``, whose warning that it will go away is left out."""
    for op, bound in (("ge", ConstantValue(0)), ("le", max)):
        if bound is not NONE:
            _check(tx, tx.interp.compare(op, i, bound), message)
    return NONE


_each(
    "manual_seed seed initial_seed set_rng_state get_rng_state "
    "is_warn_always_enabled "  # while tracing it is
    "set_default_device set_default_tensor_type set_warn_always set_printoptions "
    "set_autocast_enabled set_autocast_dtype set_autocast_cache_enabled "
    "cuda.manual_seed cuda.manual_seed_all cuda.synchronize cuda.empty_cache "
    "save load frombuffer from_file compile compiler.cudagraph_mark_step_begin "
    "jit.script jit.trace",
    _refused("torch-state"),
)


def _break(tx: Trace, args: Args, kwargs: Kwargs) -> Value:
    if is_library(tx.frames[-1].info.code):
        return NONE  # optimizers ask for it, for the sake of torch's own compiler
    raise Unsupported("opaque-call", what="torch._dynamo.graph_break")


register_name("torch._dynamo.decorators", "graph_break", _break)
# Once torch's own compiler has been used, every new module is noted there.
register_name(
    "torch._dynamo.mutation_guard", "GenerationTracker.tag", lambda tx, args, kwargs: NONE
)


@handles(private.set_grad_enabled)
def _set_grad(tx: Trace, enabled: Value, /) -> Value:
    GradModeValue(torch.set_grad_enabled, bool(enabled.as_constant())).apply(tx)
    return NONE


for _function, _put, _read in private.SWITCHES:
    register(_function, switch_handler(_put, _read))


@handles(torch.nn.functional.scaled_dot_product_attention)
def _attention(tx: Trace, *args: Value, **kwargs: Value) -> None:
    """Backends may decide on the kernel when they compile."""
    if not any(isinstance(context, Switch) for context in tx.graph.contexts):
        tx.world.query(private.attention_switches)


_each("jit.unused jit.ignore jit.export", lambda fn: lambda tx, args, kwargs: args[0])


_HALF = ConstantValue(0.5)


@handles(torch.nn.functional.dropout, torch.nn.functional.alpha_dropout)
def _dropout(
    tx: Trace, input: Value, p: Value = _HALF, training: Value = NONE, inplace: Value = FALSE
) -> Value | None:
    """Outside of training, and where there is nothing to drop, dropout gives its very argument."""
    rate = p.sym if isinstance(p, SymNumValue) else p.as_constant()
    if isinstance(rate, int | float | torch.SymFloat) and isinstance(input, TensorValue):
        idle = isinstance(training, ConstantValue) and training.value is False
        empty = any(type(n) is int and n == 0 for n in input.fake.shape)
        if bool(rate >= 0) and bool(rate <= 1):
            kept = not input.fake.is_nested and (empty or bool(rate == 0))  # a nested one draws
            return input if idle or kept else None
    return None
