"""``FakeRunner``: runs one operator on fake tensors and explains what went wrong.

Fake operators dominate the time of a trace (a linear layer takes about 0.4 ms), and models repeat
the same operator on the same shapes. So results of operators that only make new tensors are
remembered by the metadata of their arguments, as long as all of it is static. A remembered result
that requires gradients has no history but a stand-in, and a remembered view shares storage and
version with its tensor but is not known to autograd as a view of it; where a program looks into
history (``backward``, a write that gives a view a gradient) it is traced again with all of it
(``HistoryNeeded``).
"""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn.functional import batch_norm, instance_norm
from torchsmith_guards import FakeMode, with_examples
from torchsmith_guards.errors import DataDependentError

from torchsmith_tracer._src.breaks.signals import HistoryNeeded, ObservedException, Unsupported
from torchsmith_tracer._src.graph import overlap
from torchsmith_tracer._src.torch_private import (
    OPERATORS,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    apply_of,
    functorch_transform,
    has_symbols,
    map_nodes,
    set_version,
    storage_id,
    version_of,
)
from torchsmith_tracer._src.values.torch_fn import name_of

_INPLACE_FUNCTIONS = {
    *(operator.setitem, operator.iadd, operator.isub, operator.imul, operator.imatmul),
    *(operator.itruediv, operator.ifloordiv, operator.imod, operator.ipow, operator.iand),
    *(operator.ior, operator.ixor, operator.ilshift, operator.irshift),
}
# Their results follow from how their arguments came about, or are not what they are called for.
_BY_HISTORY = {torch.autograd.grad, setattr}
TRACKING = {  # which argument is the running mean; the variance is next, and 5 is the switch
    **dict.fromkeys((batch_norm, instance_norm), 1),
    **dict.fromkeys((torch.batch_norm, torch.instance_norm, torch.native_batch_norm), 3),
}
_NOT_OF_VIEWS = "detach_"  # fails on views
# Methods that give their tensor another layout on purpose.
_RELAYING = frozenset(
    "resize_ resize_as_ set_ as_strided_ t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ "
    "sparse_resize_ sparse_resize_and_clear_ share_memory_".split()
)
# Functions that write to arguments, which versions of fake tensors do not show.
_SILENT = {
    getattr(torch, name): getattr(torch.ops.aten, name)
    for name in dir(torch)
    if re.fullmatch(r"_(amp|foreach|fused)_\w+_|_?fused_moving_avg_\w+|_native_\w+_legit", name)
}
RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
_ATOMS = (int, float, bool, str, bytes, type(None), type(Ellipsis), complex)
# What torch raises, and what it says, of operators that need more than a fake tensor has.
_REFUSALS = {
    "data-dependent-op": (DataDependentOutputException, DynamicOutputShapeException),
    "op-without-fake": (UnsupportedOperatorException, UnsupportedFakeTensorException),
}
_FAILURES = {
    "no fake impl registered": "op-without-fake",
    "its data is not allocated yet": "data-dependent-op",
}
_TORCH_ATOMS = (torch.dtype, torch.device, torch.layout, torch.memory_format)


_UNKNOWN = object()
_WRITTEN = object()  # of a write that leaves its tensor's layout as it is


class _Uncacheable(Exception):
    """An argument whose content the key cannot express, or a result that cannot be made again."""


@dataclass(frozen=True, slots=True)
class Given:
    """The result is the very list that was given as argument ``place``."""

    place: int


class _Forgotten(torch.autograd.Function):
    """The history of a remembered result: something that requires gradients came before."""

    @staticmethod
    def forward(ctx: object, root: torch.Tensor, fake: FakeMode, spec: _TensorSpec) -> torch.Tensor:
        return fake.new_strided(spec.size, spec.stride, spec.dtype, spec.device)

    @staticmethod
    def backward(ctx: object, *grads: object) -> object:
        raise RuntimeError("the history of this fake tensor has been forgotten")


_forgotten = apply_of(_Forgotten)


class FakeRunner:
    """Runs operators under the fake mode, with a memory of earlier results.

    Attributes:
        keep_history: whether views, and results that require gradients, are always computed.
    """

    def __init__(self, fake: FakeMode, *, keep_history: bool) -> None:
        self.keep_history = keep_history
        self._fake = fake
        self._memory: dict[Hashable, object] = {}
        self._root: torch.Tensor | None = None  # what remembered results have come from
        self._has_views = False  # whether remembered ones were given out

    def need_history(self) -> None:
        """What follows depends on the history of tensors.

        Raises:
            HistoryNeeded: some of it has been forgotten.
        """
        if self._root is not None or self._has_views:
            raise HistoryNeeded
        self.keep_history = True

    def run(
        self,
        op: str,
        target: Callable[..., object] | str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        remember: bool = True,
    ) -> tuple[object, list[torch.Tensor], bool]:
        """Run a call whose arguments hold nodes and constants; an equal call may get a remembered
        result.

        Returns:
            The fake result, the fake arguments that it changed in place, and whether the result
            is one of the arguments.
        """
        fake_args: tuple[object, ...] = map_nodes(args, _example)
        fake_kwargs: dict[str, object] = map_nodes(kwargs, _example) if kwargs else {}
        tensors: list[torch.Tensor] = []
        collect_tensors(fake_args, tensors)
        collect_tensors(fake_kwargs, tensors)
        key = self._key(target, fake_args, fake_kwargs, tensors) if remember else None
        spec = _UNKNOWN if key is None else self._memory.get(key, _UNKNOWN)
        if spec is _WRITTEN:
            torch.autograd.graph.increment_version(tensors[0])
            return tensors[0], [t for t in tensors if t is tensors[0]], True
        if spec is not _UNKNOWN:
            return self._build(spec, tensors), [], False
        versions = [version_of(t) for t in tensors]
        try:
            result = self._call(op, target, fake_args, fake_kwargs, tensors)
        except (Unsupported, ObservedException):
            raise
        except Exception as e:
            raise _refusal(target, e) from e
        mutated = [t for t, v in zip(tensors, versions, strict=True) if version_of(t) != v]
        if target is setattr:
            mutated = tensors[:1]
        elif isinstance(target, OPERATORS) or target in _SILENT:
            known_written = {id(t) for t in mutated}
            written = _written(_SILENT.get(target, target), fake_args, fake_kwargs)
            written = [t for t in written if id(t) not in known_written]
            for tensor in written if target in _SILENT else ():
                before = version_of(tensor)
                set_version(tensor, None if before is None else before + 1)
            mutated += written
        elif target in TRACKING:
            mutated += statistics(target, fake_args, fake_kwargs)
        if mutated or "out" in kwargs:  # which counts no versions of inference tensors
            collect_tensors(fake_kwargs.get("out"), mutated)
        if isinstance(result, list | tuple):
            for place, arg in enumerate(fake_args):
                if arg is result and result:
                    return Given(place), mutated, True
        known = any(t is result for t in tensors)
        uncounted = known and version_of(tensors[0]) is None
        if not mutated and tensors and (in_place(target) or uncounted):
            # Inference tensors count no versions: go by the name, and be careful with others.
            mutated = [result] if isinstance(result, torch.Tensor) and known else tensors[:1]
        if mutated:
            gradients = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
            if self._has_views and (gradients or target == _NOT_OF_VIEWS):
                raise HistoryNeeded
            if key and result is fake_args[0] and (before := versions[0]) is not None:
                if version_of(tensors[0]) == before + 1 and _args_key(fake_args[:1]) == key[1][:1]:
                    self._memory[key] = _WRITTEN
            return result, mutated, known
        if key is not None and not known:
            with contextlib.suppress(_Uncacheable):
                self._memory[key] = self._spec(result, tensors, {storage_id(t) for t in tensors})
        return result, [], known

    def _call(
        self,
        op: str,
        target: Callable[..., object] | str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        tensors: list[torch.Tensor],
    ) -> object:
        """The result for fake arguments, which hold ``tensors``."""
        first = tensors[0] if tensors and in_place(target) and target not in _RELAYING else None
        layout = None if first is None else (first.size(), first.stride(), first.storage_offset())
        cache = torch.is_autocast_cache_enabled() and _autocast_key() is not None
        if cache:  # casts of fake tensors are not kept for the user's
            torch.set_autocast_cache_enabled(False)
        try:
            with self._fake.mode:
                args, kwargs = with_examples(target, args, kwargs)
                if op == "call_method":
                    method = getattr(args[0], target)  # type: ignore[arg-type]
                    result: object = method(*args[1:], **kwargs)
                elif target in RECURRENT and len(args) == 9 and not kwargs:
                    result = _recurrent(target, *args)
                else:
                    result = target(*args, **kwargs)  # type: ignore[operator]
                # Some fake operators give what they write the broadcast size, where eager raises.
                if layout is not None and (now := first.size()) != layout[0]:  # type: ignore[union-attr]
                    first.as_strided_(*layout)  # type: ignore[union-attr]
                    text = f"output with shape {layout[0]} doesn't match the broadcast shape {now}"
                    raise RuntimeError(text)
                if first is not None or "out" in kwargs or target in _SILENT:
                    overlap.refuse(target, args, kwargs, tensors)
        finally:
            if cache:
                torch.set_autocast_cache_enabled(True)
        return result

    def _key(
        self,
        target: Callable[..., object] | str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        tensors: list[torch.Tensor],
    ) -> tuple[Any, ...] | None:
        if target in _BY_HISTORY or functorch_transform() is not None:
            return None
        if "out" in kwargs:
            return None
        if in_place(target):
            gradients = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
            stores = {id(t): storage_id(t) for t in tensors}  # one may be given twice
            if gradients or target in _RELAYING or len({*stores.values()}) < len(stores):
                return None  # what it does depends on more than layouts
        if target in _SILENT or (isinstance(target, OPERATORS) and _written(target, args, kwargs)):
            return None
        try:
            return (
                target,
                _args_key(args),
                _args_key(tuple(kwargs.items())) if kwargs else None,
                torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(),
                _autocast_key(),
                torch.get_default_dtype(),
            )
        except _Uncacheable:
            return None

    def _build(self, spec: object, tensors: Sequence[torch.Tensor]) -> object:
        if type(spec) is _TensorSpec:
            return self._tensor(spec)
        if type(spec) is torch.Tensor:
            return self._fake.mode.lift(spec)
        if type(spec) is _ViewSpec:
            self._has_views = True
            return self._fake.view(tensors[spec.place], spec.size, spec.stride, spec.offset)
        if type(spec) is tuple:
            kind, parts = spec
            return kind([self._build(p, tensors) for p in parts])
        return spec

    def _tensor(self, spec: _TensorSpec) -> torch.Tensor:
        if not spec.requires_grad:
            return self._fake.new_strided(spec.size, spec.stride, spec.dtype, spec.device)
        if self._root is None:
            self._root = torch.empty(0, device="cpu", requires_grad=True)
        with self._fake.mode:  # which answers when autograd asks for the device
            made: torch.Tensor = _forgotten(self._root, self._fake, spec)
            return made

    def _spec(self, result: object, given: list[Any], used: set[int]) -> object:
        """What ``_build`` makes again, if no more is to be known of its history than that there is
        one. ``given``: the arguments; ``used``: their storages and those of the results so far."""
        kind = type(result)
        if isinstance(result, torch.Tensor):
            if kind is not FakeTensor or (result.requires_grad and self.keep_history):
                raise _Uncacheable
            if result.requires_grad and (result.is_leaf or result.output_nr):
                raise _Uncacheable
            if result.layout is not torch.strided or result.is_conj() or result.is_neg():
                raise _Uncacheable
            if has_symbols(result) or result.is_inference():
                raise _Uncacheable
            if (value := getattr(result, "constant", None)) is not None:
                stores = {storage_id(t.constant) for t in given if t.constant is not None}
                if storage_id(value) in stores or result.requires_grad:
                    raise _Uncacheable
                return value.clone()  # writes change it
            if result._is_view() and not self.keep_history:
                return _view_spec(result, given)
            storage = storage_id(result)
            if storage in used or result.storage_offset():
                raise _Uncacheable
            used.add(storage)  # results that share storage with each other are not remembered
            layout = result.size(), result.stride()
            return _TensorSpec(*layout, result.dtype, result.device, result.requires_grad)
        if kind is tuple or kind is list or kind.__module__ == "torch.return_types":
            return (kind, [self._spec(p, given, used) for p in result])  # type: ignore[attr-defined]
        if kind in (bool, type(None), torch.dtype, torch.device, str):
            return result
        raise _Uncacheable


def _refusal(target: Callable[..., object] | str, error: Exception) -> Unsupported:
    """What a break says of a call that raised ``error`` for fake tensors."""
    what, text = name_of(target), str(error)
    if isinstance(error, DataDependentError):
        text = f"cannot decide `{error.details['expr']}`"
        return Unsupported("data-dependent-size", what=what, error=text)
    for kind, errors in _REFUSALS.items():
        if isinstance(error, errors):
            return Unsupported(kind, what=what, error=text)
    # Running the instruction natively raises the very exception that eager raises.
    first = f"{type(error).__name__}: {(text.strip().splitlines() or [''])[0]}"
    kind = next((kind for part, kind in _FAILURES.items() if part in text), "op-failed")
    return Unsupported(kind, what=what, error=first, cause=error)


def in_place(target: Callable[..., object] | str) -> bool:
    """Whether a call of ``target`` writes its first argument and returns it."""
    if isinstance(target, str):
        return target.endswith("_") and not target.endswith("__")
    return target in _INPLACE_FUNCTIONS


def statistics(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The running statistics that a call of one of ``TRACKING`` writes."""
    first = TRACKING[target]
    switch = kwargs.get("training", kwargs.get("use_input_stats", target is instance_norm))
    if not (args[5] if len(args) > 5 else switch):
        return []
    named = (kwargs.get("running_mean"), kwargs.get("running_var"))
    return [t for t in (*args[first : first + 2], *named) if t is not None]


def _written(
    target: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[torch.Tensor]:
    """The arguments that an operator writes by its schema. A kernel of a library's own may do so
    below the level where versions are counted."""
    overloads = getattr(target, "overloads", None)
    several: list[Any] = [target]
    if overloads is not None:
        several = [getattr(target, name) for name in overloads()]
    found: list[torch.Tensor] = []
    for overload in several:
        for place, argument in enumerate(overload._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[place : place + 1] if not argument.kwarg_only else ()
                collect_tensors((*given, kwargs.get(argument.name)), found)
    return found


def _example(node: fx.Node) -> object:
    return node.meta["example_value"]


def _autocast_key() -> Hashable:
    if not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda"):
        return None
    return tuple(
        (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")
    )


def _args_key(args: tuple[object, ...] | list[object]) -> Hashable:
    parts: list[Hashable] = []
    for arg in args:
        kind = type(arg)
        if isinstance(arg, torch.Tensor):
            parts.append(_tensor_key(arg))
        elif kind in _ATOMS:
            parts.append((kind, arg))
        elif isinstance(arg, _TORCH_ATOMS) or kind in (torch.finfo, torch.iinfo):
            parts.append(arg)
        elif isinstance(arg, tuple | list):
            parts.append((kind, _args_key(arg)))
        elif kind is slice:
            parts.append((slice, _args_key((arg.start, arg.stop, arg.step))))  # type: ignore[attr-defined]
        else:
            raise _Uncacheable
    return tuple(parts)


def _tensor_key(tensor: torch.Tensor) -> Hashable:
    if type(tensor) is not FakeTensor and not isinstance(tensor, FakeTensor):
        raise _Uncacheable
    if has_symbols(tensor):
        raise _Uncacheable
    return (
        tensor.size(),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.fake_device,  # what ``device`` gives, in several steps
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
        getattr(tensor, "_is_param", False),
        None if tensor.constant is None else repr(tensor.constant.tolist()),  # it may be a size
    )


@dataclass(frozen=True, slots=True)
class _TensorSpec:
    """How to make an equal tensor again. A whole result is a nest of plain containers of these."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class _ViewSpec:
    """How to make an equal view of the argument ``place`` again."""

    place: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def _view_spec(result: torch.Tensor, given: list[torch.Tensor]) -> _ViewSpec:
    storage, grad = storage_id(result), torch.is_grad_enabled()
    places = [n for n, tensor in enumerate(given) if storage_id(tensor) == storage]
    if len(places) != 1 or result.requires_grad:
        raise _Uncacheable
    base = given[places[0]]
    if base is result or base.dtype != result.dtype or (base.requires_grad and grad):
        raise _Uncacheable
    return _ViewSpec(places[0], result.size(), result.stride(), int(result.storage_offset()))


def collect_tensors(arg: object, into: list[torch.Tensor]) -> None:
    """Append the tensors in a nest of lists, tuples and dicts."""
    if isinstance(arg, torch.Tensor):
        into.append(arg)
    elif isinstance(arg, tuple | list):
        for part in arg:
            collect_tensors(part, into)
    elif isinstance(arg, dict):
        for part in arg.values():
            collect_tensors(part, into)


def _recurrent(target: Callable[..., Any], x: Any, state: Any, *args: Any) -> object:
    """The result of a recurrent network, which torch would unroll at symbolic sizes to see that the
    sizes of its states do not depend on the length."""
    if type(args[-1]) is not bool:  # packed
        return target(x, state, *args)
    time = 1 if args[-1] is True else 0
    short = type(x.shape[time]) is not int
    states, *last = target(x.narrow(time, 0, 1) if short else x, state, *args)
    if short:
        size = x.shape[1::-1] if time else x.shape[:2]
        whole = states.new_empty((*size, states.shape[-1]))
        states = (whole.transpose(0, 1) if time else whole) + states
    # Some versions of torch's definition for symbolic sizes add a dimension.
    given = state if isinstance(state, tuple | list) else (state,)
    last = [one.reshape(h.shape) if one.dim() > h.dim() else one for one, h in zip(last, given)]
    return states, *last
