"""What tracing needs to know about an operator, read once from its schema."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch
from torchsmith_guards import hint_of

from torchsmith_fx_backend._src.capture.torch_private import OpOverload, has_composite_kernel

aten = torch.ops.aten


class Effect(Enum):
    """What an operator does to memory that exists before the call."""

    NONE = "none"  # results are fresh tensors
    VIEW = "view"  # results share the first argument's storage
    WRITE = "write"  # writes into arguments
    METADATA = "metadata"  # changes sizes or strides of the first argument's tensor object


@dataclass(frozen=True, slots=True)
class OpInfo:
    """Facts about one overload.

    Attributes:
        name: its name without namespace and overload.
        effect: what it does to existing memory.
        writes: positions of the arguments that it writes, in schema order.
        names: argument names by position.
        composite: it is defined by other operators.
        impure: it must stay in the graph even when nothing uses its result.
        reads_value: it returns a Python number read from a tensor.
        seeded: it draws random numbers.
        refuses: which operands eager refuses, though rules and loops would take them.
        numbers: positions of numbers that eager refuses where they do not fit the elements.
    """

    name: str
    effect: Effect
    writes: tuple[int, ...]
    names: tuple[str, ...]
    composite: bool
    impure: bool
    reads_value: bool
    seeded: bool
    refuses: str
    numbers: tuple[int, ...]


# See ``is_factory``.
_FACTORIES = frozenset(
    "arange bartlett_window blackman_window empty empty_like empty_permuted empty_strided eye "
    "fft_fftfreq fft_rfftfreq full full_like hamming_window hann_window kaiser_window linspace "
    "logspace ones ones_like rand rand_like randint randint_like randn randn_like randperm range "
    "scalar_tensor tril_indices triu_indices zeros zeros_like".split()
)

# See ``is_refused``.
_REFUSES = {
    name: which
    for which, names in {
        "a first truth": "abs ceil floor round trunc relu threshold argmax argmin addcmul "
        "max_pool2d_with_indices",
        "truths alone": "clamp clamp_min clamp_max fmod remainder floor_divide bitwise_left_shift "
        "bitwise_right_shift",
        "a first integer": "frac hardswish hardsigmoid leaky_relu _prelu_kernel lerp logcumsumexp "
        "var std var_mean std_mean max_pool1d",
        "integers divided": "addcdiv",
        "a truth": "sub rsub",
        "a scale": "add",
        "other parameters": "layer_norm native_layer_norm group_norm native_group_norm batch_norm",
        "other weights": "cross_entropy_loss nll_loss nll_loss_nd nll_loss_forward "
        "nll_loss2d nll_loss2d_forward",
    }.items()
    for name in names.split()
}


# Positions of numbers that become elements or are computed with as such (refused more than eager
# does, since aten judges then); on a CPU, also of limits that elements are compared to.
_ELEMENTS = {
    name: places
    for places, names in {
        (0,): "scalar_tensor",
        (1,): "full full_like fill fill_diagonal pow leaky_relu remainder fmod floor_divide",
        (2,): "new_full masked_fill constant_pad_nd add sub rsub lerp",
        (3,): "index_fill scatter addcmul addcdiv",
        (1, 2, 3): "elu",
    }.items()
    for name in names.split()
}
_LIMITS = dict.fromkeys("clamp clamp_min clamp_max threshold hardtanh".split(), (1, 2))


# Queries about a tensor object: answered from metadata, never recorded.
QUERIES = frozenset(
    getattr(aten, name).default
    for name in "size stride storage_offset sym_size sym_stride sym_storage_offset sym_numel numel "
    "is_contiguous is_strides_like_format is_non_overlapping_and_dense dim".split()
) | {torch.ops.prim.device.default, aten.is_contiguous.memory_format}


@cache
def op_info(op: OpOverload) -> OpInfo:
    """The facts about ``op``."""
    schema = op._schema
    writes = tuple(
        i
        for i, arg in enumerate(schema.arguments)
        if arg.alias_info is not None and arg.alias_info.is_write
    )
    tags = op.tags
    if torch.Tag.inplace_view in tags:
        effect = Effect.METADATA
    elif writes:
        effect = Effect.WRITE
    elif schema.arguments and any(r.alias_info is not None for r in schema.returns):
        effect = Effect.VIEW
    else:
        effect = Effect.NONE
    seeded = torch.Tag.nondeterministic_seeded in tags
    namespace, name = schema.name.split("::")
    known_as = name.removesuffix("_") if namespace == "aten" else ""
    return OpInfo(
        name=name,
        effect=effect,
        writes=writes,
        names=tuple(arg.name for arg in schema.arguments),
        composite=has_composite_kernel(op),
        impure=bool(writes) or seeded or not schema.returns,
        reads_value=torch.Tag.data_dependent_output in tags,
        seeded=seeded,
        refuses=_REFUSES.get(known_as, ""),
        numbers=_ELEMENTS.get(known_as) or _LIMITS.get(known_as, ())[: len(schema.arguments) - 1],
    )


def is_refused(info: OpInfo, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether eager has no such operator for operands of these dtypes, or cannot hold a number in
    them, and says so when it runs."""
    for i in info.numbers:
        number = args[i] if i < len(args) else kwargs.get(info.names[i])
        if not _fits(number, args, kwargs, info):
            return True
    if not info.refuses:
        return False
    kinds = [a.dtype if isinstance(a, torch.Tensor) else type(a) for a in args if a is not None]
    integral = [
        isinstance(k, torch.dtype) and not (k.is_floating_point or k.is_complex) for k in kinds
    ]
    truths = [kind in (torch.bool, bool) for kind in kinds]
    match info.refuses:
        case "a first truth":
            return truths[0]
        case "truths alone":
            return all(truths)
        case "a first integer":
            return integral[0]
        case "integers divided":
            return all(integral[1:3])
        case "a truth" if any(truths):
            return True
        case "other parameters":  # single ones go with halves
            others = {k for k in kinds[1:] if isinstance(k, torch.dtype)} - {kinds[0]}
            return bool(others) and (others != {torch.float32} or kinds[0] is torch.float64)
        case "other weights" if not any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            others = {k for k in kinds[2:] if isinstance(k, torch.dtype)} - {kinds[0]}
            return integral[0] or bool(others)
    scale = kwargs.get("alpha", args[2] if len(args) > 2 else 1)  # of a sum or difference
    if isinstance(scale, bool):
        return not all(truths[:2])
    whole = [known or kind in (int, bool, torch.SymInt) for known, kind in zip(integral, kinds)]
    return isinstance(scale, float | torch.SymFloat) and all(whole[:2])


def _fits(number: Any, args: Sequence[object], kwargs: Mapping[str, object], info: OpInfo) -> bool:
    """Whether ``number`` can be an element, as ``c10::Scalar::to`` decides. What a symbol is at
    this call decides, too, and is guarded; one that depends on the data can."""
    tensor = args[0] if isinstance(args[0], torch.Tensor) else None
    dtype = kwargs.get("dtype") or (torch.get_default_dtype() if tensor is None else tensor.dtype)
    exact = type(number) in (int, torch.SymInt)
    if not (exact or type(number) in (float, torch.SymFloat)) or not isinstance(dtype, torch.dtype):
        return True
    unknown = type(number) in (torch.SymInt, torch.SymFloat) and (
        (dtype.itemsize >= 8 and (exact or dtype is not torch.int64))  # holds whatever it is
        or (exact and dtype.is_floating_point and dtype is not torch.float16)
        or hint_of(number) is None
    )
    whole = exact and (tensor is None and kwargs.get("dtype") is None)
    limits = info.name.removesuffix("_") in _LIMITS
    elsewhere = tensor is not None and tensor.device.type != "cpu"
    if dtype is torch.bool or unknown or whole or (limits and elsewhere):
        return True
    if dtype.is_floating_point or dtype.is_complex:
        most = torch.finfo(dtype).max
        return bool(-most <= number <= most or number != number or number in (math.inf, -math.inf))
    if limits and not exact:  # compared as floats
        return True
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if least == 0 and exact:
        least = -most  # wraps around
    return bool(least <= number <= most)


_NAMED_IN_PAIRS = ("aten", "prims", "_c10d_functional")
_FUNCTIONAL_NAMES = {
    ("normal_", "default"): ("normal_functional", "default"),
    ("bernoulli_", "float"): ("bernoulli", "p"),
    ("_native_batch_norm_legit", "default"): ("_native_batch_norm_legit_functional", "default"),
    ("_batch_norm_with_update", "default"): ("_batch_norm_with_update_functional", "default"),
}


@cache
def functional_variant(op: OpOverload) -> OpOverload | None:
    """The overload that returns what ``op`` writes, instead of writing it; None without one.

    In-place names lose their underscore. An ``out`` overload maps to the one with the same
    arguments less the written ones. Others' operators of such names need have nothing in common.
    """
    if op.namespace not in _NAMED_IN_PAIRS:
        return None
    schema = op._schema
    name = schema.name.split("::")[1]
    namespace = getattr(torch.ops, op.namespace)
    overload = schema.overload_name or "default"
    if op.namespace == "aten" and (name, overload) in _FUNCTIONAL_NAMES:
        name, overload = _FUNCTIONAL_NAMES[name, overload]
        return _overload(getattr(namespace, name), overload)
    if name.endswith("_") and not name.startswith("__"):
        return _of_same_types(op, getattr(namespace, name[:-1], None), overload)
    if name.startswith("__i") and hasattr(namespace, "__" + name[3:]):
        return _overload(getattr(namespace, "__" + name[3:]), overload)
    if not is_out_variant(op):
        return None
    wanted = [
        (a.name, str(a.type)) for i, a in enumerate(schema.arguments) if i not in op_info(op).writes
    ]
    packet = op.overloadpacket
    for candidate_name in packet.overloads():
        candidate = _overload(packet, candidate_name)
        if candidate is None:
            continue
        have = [(a.name, str(a.type)) for a in candidate._schema.arguments]
        if have == wanted and op_info(candidate).effect is Effect.NONE:
            return candidate
    return None


def _of_same_types(op: OpOverload, packet: object, preferred: str) -> OpOverload | None:
    """The overload of ``packet`` that takes what ``op`` takes. Equal names do not tell:
    ``pow.Scalar`` has a number as its base, ``pow_.Scalar`` as its exponent."""
    if packet is None:
        return None
    wanted = [str(a.type) for a in op._schema.arguments]
    for name in (preferred, *packet.overloads()):  # type: ignore[attr-defined]
        found = _overload(packet, name)
        if found is None or [str(a.type) for a in found._schema.arguments] != wanted:
            continue
        if op_info(found).effect is Effect.NONE:
            return found
    return None


def _overload(packet: object, name: str) -> OpOverload | None:
    found = getattr(packet, name, None)
    return found if isinstance(found, OpOverload) else None


def is_out_variant(op: OpOverload) -> bool:
    """Whether ``op`` writes keyword arguments (``out=``) rather than its first argument."""
    return all(op._schema.arguments[i].kwarg_only for i in op_info(op).writes)


@cache
def is_factory(op: OpOverload) -> bool:
    """Whether the binding in Python makes a variable of what ``op`` gave: it detaches it."""
    return op.namespace == "aten" and op._schema.name[6:] in _FACTORIES


def view_variant(func: OpOverload) -> OpOverload | None:
    """The view that ``func`` makes of its own tensor object; None without one."""
    packet = getattr(aten, op_info(func).name.removesuffix("_"), None)
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    for name in () if packet is None else packet.overloads():
        found: OpOverload = getattr(packet, name)  # transpose_ has no name, transpose.int has
        if op_info(found).effect is Effect.VIEW:
            if [(a.name, str(a.type)) for a in found._schema.arguments] == wanted:
                return found
    return None
