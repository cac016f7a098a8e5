"""The operators ``torchsmith::apply_rotary`` and ``apply_rotary_``, and the public function."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch, private
from torchsmith_kernels._src.apply_rotary import reference, run
from torchsmith_kernels._src.dispatch import Op, autograd, define
from torchsmith_kernels.errors import ArgumentTypeError, ShapeError

NAME = "apply_rotary"
LAYOUTS = ("bhsd", "bshd")
INDICES = (torch.int32, torch.int64)


def _check(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    rotary_dim: int,
    layout: str,
) -> None:
    """Raises unless the arguments fit each other."""
    check.dtype(NAME, "q", q, check.FLOATING)
    shape = q.shape
    if len(shape) != 4:
        raise ShapeError(
            op=NAME, argument="q", given=tuple(shape), accepted="it must have 4 dimensions"
        )
    heads = 1 if layout == "bhsd" else 2
    batch, length, dim = shape[0], shape[3 - heads], shape[3]
    if k is not None:
        check.dtype(NAME, "k", k, (q.dtype,))
        check.device(NAME, "k", k, q, "q")
        given = k.shape
        if len(given) != 4 or given[0] != batch or given[3 - heads] != length or given[3] != dim:
            raise ShapeError(
                op=NAME,
                argument="k",
                given=tuple(given),
                accepted=f"all but the number of heads must be as in `q`, {tuple(shape)}",
            )
    if rotary_dim % 2 or not 0 <= rotary_dim <= dim:
        raise ArgumentTypeError(
            op=NAME,
            argument="rotary_dim",
            given=rotary_dim,
            accepted=f"it must be even and at most the size of a head, {dim}",
        )
    check.dtype(NAME, "cos", cos, check.FLOATING)
    check.device(NAME, "cos", cos, q, "q")
    _check_table(cos, positions, batch, length, rotary_dim)
    check.dtype(NAME, "sin", sin, (cos.dtype,))
    check.device(NAME, "sin", sin, q, "q")
    if sin.shape != cos.shape:
        check.shape(NAME, "sin", sin, cos.shape, "the shape of `cos`")
    if positions is not None:
        check.dtype(NAME, "positions", positions, INDICES)
        check.device(NAME, "positions", positions, q, "q")
        given = positions.shape
        if given != (length,) and given != (batch, length) and given != (1, length):
            raise ShapeError(
                op=NAME,
                argument="positions",
                given=tuple(given),
                accepted=f"it must be {(batch, length)} or {(length,)}",
            )


def _check_table(
    cos: Tensor, positions: Tensor | None, batch: int, length: int, rotary_dim: int
) -> None:
    columns = (rotary_dim, rotary_dim // 2)
    shape = cos.shape
    dims = len(shape)
    good = dims >= 2 and shape[-1] in columns
    if not good:
        wanted = f"it must have {columns[0]} or {columns[1]} columns"
    elif positions is not None:
        good = dims == 2
        wanted = f"with `positions` it must be a table with {columns[0]} or {columns[1]} columns"
    elif dims == 2:
        good = shape[0] >= length
        wanted = f"it must have at least {length} rows, one per position"
    else:
        good = dims == 3 and (shape[0] == 1 or shape[0] == batch) and shape[1] == length
        wanted = f"it must be ({batch} or 1, {length}, {columns[0]} or {columns[1]})"
    if not good:
        raise ShapeError(op=NAME, argument="cos", given=tuple(shape), accepted=wanted)


def _kernels_run(q: Tensor) -> bool:
    return q.dtype is not torch.float64 and launch.usable(q.device, NAME)


def _forward(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    rotary_dim: int,
    interleaved: bool,
    layout: str,
    inverse: bool,
) -> tuple[Tensor, Tensor]:
    _check(q, k, cos, sin, positions, rotary_dim, layout)
    rest = (cos, sin, positions, rotary_dim, interleaved, layout, inverse)
    if _kernels_run(q):
        return run.forward(q, k, *rest)
    q_out, k_out = (torch.empty_like(x).copy_(reference.rotate(x, *rest)) for x in (q, k))
    return q_out, k_out


def _forward_fake(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    rotary_dim: int,
    interleaved: bool,
    layout: str,
    inverse: bool,
) -> tuple[Tensor, Tensor]:
    _check(q, k, cos, sin, positions, rotary_dim, layout)
    return torch.empty_like(q), torch.empty_like(k)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, cos, sin, positions, *ctx.options = inputs
    ctx.save_for_backward(cos, sin, positions)


def _no_table_gradients(ctx: Any, place: int) -> None:
    if ctx.needs_input_grad[place] or ctx.needs_input_grad[place + 1]:
        raise ArgumentTypeError(
            op=NAME,
            argument="cos",
            given="a tensor that requires a gradient",
            accepted="call torchsmith_kernels.apply_rotary, which differentiates tables as well",
        )


def _grad(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Tensor | None, ...]:
    cos, sin, positions = ctx.saved_tensors
    _no_table_gradients(ctx, 2)
    rotary_dim, interleaved, layout, inverse = ctx.options
    # The same operator turns back, so that it differentiates again.
    dq, dk = op(grad_q, grad_k, cos, sin, positions, rotary_dim, interleaved, layout, not inverse)
    return dq, dk, None, None, None, None, None, None, None


op = Op(
    "apply_rotary(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor? positions, int rotary_dim, "
    "bool interleaved, str layout, bool inverse) -> (Tensor, Tensor)",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
)


# -- in place ------------------------------------------------------------------------------------


def _in_place(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    rotary_dim: int,
    interleaved: bool,
    layout: str,
    inverse: bool,
) -> None:
    _check(q, k, cos, sin, positions, rotary_dim, layout)
    given = (("q", q),) if k is None else (("q", q), ("k", k))
    regular = True
    for name, x in given:
        repeated = any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride(), strict=True))
        if repeated and x.numel():
            raise ArgumentTypeError(
                op=NAME,
                argument=name,
                given="an expanded tensor",
                accepted="one that is changed in place must not repeat its elements",
            )
        regular = regular and x.stride(3) == 1
    if k is not None and k.numel() and k.data_ptr() == q.data_ptr():
        raise ArgumentTypeError(
            op=NAME,
            argument="k",
            given="`q` itself",
            accepted="in place they must be different tensors",
        )
    rest = (cos, sin, positions, rotary_dim, interleaved, layout, inverse)
    if regular and _kernels_run(q):
        if q.numel() or (k is not None and k.numel()):
            run.rotate(q, k, q, k, *rest)
        return
    for _, x in given:
        x.copy_(reference.rotate(x, *rest))


def _in_place_fake(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    rotary_dim: int,
    interleaved: bool,
    layout: str,
    inverse: bool,
) -> None:
    _check(q, k, cos, sin, positions, rotary_dim, layout)


def _mark_changed(q: Tensor, k: Tensor | None) -> None:
    """Raises the version counters, so that autograd notices stale saved tensors."""
    for x in (q, k):
        if x is not None and not x.is_inference():
            torch.autograd.graph.increment_version(x)


def _recorded(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _in_place_autograd(q: Tensor, k: Tensor | None, *rest: Any) -> None:
    if _recorded(q, k):
        turned = op.overload(q, q[:, :0] if k is None else k, *rest)
        q.copy_(turned[0])
        if k is not None:
            k.copy_(turned[1])
        return
    with private.below_autograd():
        in_place_overload(q, k, *rest)
    _mark_changed(q, k)


in_place_overload = define(
    "apply_rotary_(Tensor(a!) q, Tensor(b!)? k, Tensor cos, Tensor sin, Tensor? positions, "
    "int rotary_dim, bool interleaved, str layout, bool inverse) -> ()",
    cpu=_in_place,
    cuda=_in_place,
    fake=_in_place_fake,
)
autograd("apply_rotary_", _in_place_autograd)


class _InPlace(torch.autograd.Function):
    """One tensor turned in place; one at a time, since autograd then also allows views."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, *rest: Any) -> Tensor:
        ctx.mark_dirty(x)
        positions, *ctx.options = rest
        ctx.save_for_backward(cos, sin, positions)
        _in_place(x, None, cos, sin, *rest)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        cos, sin, positions = ctx.saved_tensors
        rotary_dim, interleaved, layout, inverse = ctx.options
        (grad,) = grads
        none = grad[:, :0] if layout == "bhsd" else grad[:, :, :0]
        dx, _ = op(grad, none, cos, sin, positions, rotary_dim, interleaved, layout, not inverse)
        return dx, None, None, None, None, None, None, None


_apply_in_place = cast(Any, _InPlace.apply)  # untyped in torch


def _turn_in_place(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    if op.watched(q, k):
        # Tracers and transforms see a function without side effects, and two copies.
        turned_q, turned_k = op(q, k, *rest)
        return q.copy_(turned_q), k.copy_(turned_k)
    if _recorded(q, k):
        return _apply_in_place(q, *rest), _apply_in_place(k, *rest)
    _in_place(q, k, *rest)
    _mark_changed(q, k)
    return q, k


def apply_rotary(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    *,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    layout: str = "bhsd",
    inplace: bool = False,
) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of queries and keys (Su et al., https://arxiv.org/abs/2104.09864).

    The first ``rotary_dim`` elements of a head form pairs ``(a, b)``: element ``i`` with
    ``i + rotary_dim / 2``, or, when ``interleaved``, ``2 i`` with ``2 i + 1``. Pair ``i`` of the
    token at position ``p`` becomes ``(a cos[p, i] - b sin[p, i], b cos[p, i] + a sin[p, i])``;
    further elements stay as they are. Without ``interleaved`` this is ``x * cos +
    rotate_half(x) * sin`` of the Hugging Face models, whose ``cos`` and ``sin`` of shape
    ``[batch, sequence, head_dim]`` fit as they are, as do their transposed, not contiguous ``q``
    and ``k``: nothing is copied as long as the elements of a head are contiguous.

    Low precision is computed in float32 and rounded once. Deterministic. One launch for both
    tensors; the backward pass is the same kernel, which turns back. Memory: the
    results, or nothing in place; backward keeps ``cos``, ``sin`` and ``positions`` only. Gradients
    of ``cos`` and ``sin``, if they require them, come from plain PyTorch operations.

    Args:
        q: queries, ``[batch, heads, sequence, head_dim]`` or as ``layout`` says; floating point.
        k: keys, like ``q`` up to the number of heads.
        cos: cosines, one for each pair in ``rotary_dim / 2`` columns, or one for each element in
            ``rotary_dim`` columns. The latter hold every angle twice (the second half repeats the
            first, as in Hugging Face models; when interleaved, neighbours are equal), of which the
            first is read. ``[sequence or more, columns]``, ``[batch or 1, sequence, columns]``,
            or with ``positions`` a table ``[any, columns]``. Any floating point dtype.
        sin: sines, like ``cos``.
        interleaved: whether pairs are neighbours.
        positions: int32 or int64 row of the tables for each token, ``[batch, sequence]`` or
            ``[sequence]``; row ``i`` for token ``i`` by default. On a GPU a position outside of
            the table gives NaN, on a CPU an IndexError.
        rotary_dim: how many elements of a head turn. By default all when ``cos`` has as many
            columns, otherwise twice its columns.
        layout: ``"bhsd"`` or ``"bshd"``: the order of heads and sequence in ``q`` and ``k``.
        inplace: whether to change ``q`` and ``k`` themselves and return them. When they are part
            of a graph that autograd records, this takes two launches.

    Returns:
        The turned queries and keys, with the dtype and the layouts of ``q`` and ``k``.

    Raises:
        ArgumentTypeError: an argument is of the wrong type, or ``q`` and ``k`` cannot be changed
            in place.
        DtypeError: a tensor's dtype is not accepted.
        DeviceError: tensors are on different devices.
        ShapeError: shapes do not fit each other.
    """
    for name, tensor in (("q", q), ("k", k), ("cos", cos), ("sin", sin)):
        if not isinstance(tensor, Tensor):
            check.is_tensor(NAME, name, tensor)
    check.is_tensor(NAME, "positions", positions, optional=True)
    check.choice(NAME, "layout", layout, LAYOUTS)
    if rotary_dim is None:
        columns = cos.shape[-1] if cos.dim() else 0
        rotary_dim = columns if q.dim() and columns == q.shape[-1] else 2 * columns
    elif not isinstance(rotary_dim, int | torch.SymInt):
        raise ArgumentTypeError(
            op=NAME,
            argument="rotary_dim",
            given=f"of type {type(rotary_dim).__name__}",
            accepted="it must be an int or None",
        )
    options = (positions, rotary_dim, bool(interleaved), layout, False)
    result: tuple[Tensor, Tensor]
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        _check(q, k, cos, sin, positions, rotary_dim, layout)
        # The tables' gradients need what stood there before.
        given = (q.clone(), k.clone()) if inplace else (q, k)
        turned_q, turned_k = (reference.rotate(x, cos, sin, *options) for x in given)
        result = (q.copy_(turned_q), k.copy_(turned_k)) if inplace else (turned_q, turned_k)
    elif inplace:
        result = _turn_in_place(q, k, cos, sin, *options)
    else:
        result = op(q, k, cos, sin, *options)
    return result
