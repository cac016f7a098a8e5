"""Recurrent layers over a sequence whose length is a symbol, on a CPU: one operator walks it.

Torch's definitions are unrolled, and then fit one length. LSTM layers of single precision run the
kernel that eager runs. The others have operators here: the walk keeps what its gradient needs, and
the gradient walks back; the products with all inputs and for the weights stay outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_fx_backend._src.capture.torch_private import apply_of

Tensor = torch.Tensor
aten: Any = torch.ops.aten
_own: Any = torch.ops.torchsmith_fx_backend

_DEFINED: Any = torch.library.Library("torchsmith_fx_backend", "DEF")  # type: ignore[no-untyped-call]
_DEFINED.define(
    "recurrent_layer(str kind, Tensor x, Tensor h, Tensor[] params, bool both) -> (Tensor, Tensor)"
)
_DEFINED.define(
    "recurrence(Tensor gates, Tensor h, Tensor weight, Tensor? bias, str kind, bool reverse)"
    " -> (Tensor, Tensor)"
)
_DEFINED.define(
    "recurrence_backward(Tensor grad, Tensor kept, Tensor states, Tensor h, Tensor weight,"
    " str kind, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)"
)


def layer(
    kind: str, x: Tensor, state: Sequence[Tensor], params: Sequence[Tensor], *, both: bool
) -> tuple[Tensor, ...]:
    """One layer.

    Args:
        kind: ``lstm``, ``gru``, ``tanh`` or ``relu``.
        x: (time, batch, features).
        state: the first hidden state, and for an LSTM the cell, each (directions, batch, hidden).
        params: for each direction the weights of inputs and of states, then their biases, if any.
        both: whether there are two directions.

    Returns:
        All states (time, batch, directions * hidden), and the last ones as ``state``.
    """
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *state, *params))
    if kind != "lstm" and not training:
        found = _own.recurrent_layer(kind, x, state[0], params, both)
        return tuple(found)
    part = len(params) // (2 if both else 1)
    ways = [
        _one_way(
            kind,
            x,
            [s.narrow(0, way, 1) for s in state],
            params[way * part : (way + 1) * part],
            reverse=bool(way),
            training=training,
        )
        for way in range(2 if both else 1)
    ]
    if not both:
        return ways[0]
    outputs, *last = zip(*ways)
    return torch.cat(outputs, -1), *map(torch.cat, last)


def _one_way(
    kind: str,
    x: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    *,
    reverse: bool,
    training: bool,
) -> tuple[Tensor, ...]:
    weight_x, weight_h, *biases = params
    bias_x: Any
    bias_h: Any
    bias_x, bias_h = biases or (None, None)
    if kind == "lstm":
        places = biases or [torch.zeros_like(weight[:, 0]) for weight in params]
        h, c = (s.contiguous() for s in state)
        sizes: tuple[Any, ...] = ([], 2, h.shape[-1], 1, bool(biases), False, False, training)
        found = aten.mkldnn_rnn_layer.default(
            x.contiguous(), weight_x, weight_h, *places, h, c, reverse, *sizes
        )
        return tuple(found[:3])
    if kind != "gru" and biases:  # of a GRU, a gate is between the two
        bias_x, bias_h = bias_x + bias_h, None
    gates = torch.nn.functional.linear(x, weight_x, bias_x)
    states = _recurrence(gates, state[0].squeeze(0), weight_h, bias_h, kind, reverse)
    return states, (states[:1] if reverse else states[-1:]).clone()  # no view


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None, *how: Any
    ) -> Any:
        states, kept = _own.recurrence(gates, h, weight, bias, *how)
        ctx.save_for_backward(kept, states, gates, h, weight, bias)
        ctx.how = how
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        kept, states, *inputs = ctx.saved_tensors
        _, h, weight, bias = inputs
        if torch.is_grad_enabled():  # to be differentiated again: by torch, of one length
            again = _unrolled(*inputs, *ctx.how)
            given = [t for t in inputs if t is not None and t.requires_grad]
            found = iter(torch.autograd.grad(again, given, grad, create_graph=True))
            return (
                *(next(found) if any(t is g for g in given) else None for t in inputs),
                None,
                None,
            )
        inner, first, of_weight, of_bias = _own.recurrence_backward(
            grad, kept, states, h, weight, *ctx.how
        )
        return inner, first, of_weight, None if bias is None else of_bias, None, None


_recurrence = apply_of(_Recurrence)


def _unrolled(
    gates: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None, kind: str, reverse: bool
) -> Tensor:
    inputs, n, states = gates.unbind(), h.shape[-1], []
    for given in reversed(inputs) if reverse else inputs:
        own = torch.nn.functional.linear(h, weight, bias)
        if kind == "gru":
            reset, update = (given + own).narrow(-1, 0, 2 * n).sigmoid().chunk(2, -1)
            new = (given.narrow(-1, 2 * n, n) + reset * own.narrow(-1, 2 * n, n)).tanh()
            h = new + update * (h - new)
        else:
            h = (given + own).tanh() if kind == "tanh" else (given + own).relu()
        states.append(h)
    return torch.stack(states[::-1] if reverse else states)


# --- the walks -----------------------------------------------------------------------------------


def _walk(
    gates: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None, kind: str, reverse: bool
) -> tuple[Tensor, Tensor]:
    time, batch, _ = gates.shape
    states = gates.new_empty(time, batch, h.shape[-1])
    kept = gates.new_empty(_kept(gates, kind))
    columns, steps = weight.t(), range(time)[:: -1 if reverse else 1]
    inputs, outputs = gates.unbind(), states.unbind()
    if kind != "gru":
        act = torch.tanh_ if kind == "tanh" else torch.relu_
        for i in steps:
            h = act(torch.addmm(inputs[i], h, columns, out=outputs[i]))
        return states, kept
    after, before = kept.unbind(1)
    n = h.shape[-1]
    reset, update, new = (after.narrow(-1, k * n, n).unbind() for k in range(3))
    first = [t.narrow(-1, 0, 2 * n).unbind() for t in (gates, before, after)]
    new_in, own_new = (t.narrow(-1, 2 * n, n).unbind() for t in (gates, before))
    products = before.unbind()
    for i in steps:
        if bias is None:
            torch.mm(h, columns, out=products[i])
        else:
            torch.addmm(bias, h, columns, out=products[i])
        torch.add(first[0][i], first[1][i], out=first[2][i]).sigmoid_()
        candidate = torch.addcmul(new_in[i], reset[i], own_new[i], out=new[i]).tanh_()
        h = torch.lerp(candidate, h, update[i], out=outputs[i])
    return states, kept


def _walk_back(
    grad: Tensor, kept: Tensor, states: Tensor, h: Tensor, weight: Tensor, kind: str, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the gates, the first state, the weight, and what is added to its products."""
    time, _, n = states.shape
    inner = states.new_empty(*states.shape[:-1], weight.shape[0])
    outer = torch.empty_like(inner) if kind == "gru" else inner
    grads, results, back = grad.unbind(), states.unbind(), inner.unbind()
    steps = range(time) if reverse else range(time - 1, -1, -1)
    flow = torch.zeros_like(h)
    if kind != "gru":
        slope = aten.tanh_backward if kind == "tanh" else aten.threshold_backward
        limit = () if kind == "tanh" else (0,)
        for i in steps:
            slope.grad_input(grads[i] + flow, results[i], *limit, grad_input=back[i])
            flow = back[i] @ weight
        return inner, flow, *_of_weight(outer, states, h, reverse)
    reset, update, new = (kept.select(1, 0).narrow(-1, k * n, n).unbind() for k in range(3))
    own = kept.select(1, 1).narrow(-1, 2 * n, n).unbind()
    by_reset, by_update, by_new = (inner.narrow(-1, k * n, n).unbind() for k in range(3))
    both = [t.narrow(-1, 0, 2 * n).unbind() for t in (inner, outer)]
    own_back, all_back = outer.narrow(-1, 2 * n, n).unbind(), outer.unbind()
    for i in steps:
        total = grads[i] + flow
        before = results[i + 1] if reverse and i + 1 < time else h
        if not reverse:
            before = results[i - 1] if i else h
        passed = total * update[i]
        aten.tanh_backward.grad_input(total - passed, new[i], grad_input=by_new[i])
        aten.sigmoid_backward.grad_input(
            total * (before - new[i]), update[i], grad_input=by_update[i]
        )
        aten.sigmoid_backward.grad_input(by_new[i] * own[i], reset[i], grad_input=by_reset[i])
        both[1][i].copy_(both[0][i])
        torch.mul(by_new[i], reset[i], out=own_back[i])
        flow = passed.addmm_(all_back[i], weight)
    return inner, flow, *_of_weight(outer, states, h, reverse)


def _of_weight(outer: Tensor, states: Tensor, h: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    start = h.unsqueeze(0)
    before = torch.cat([states[1:], start] if reverse else [start, states[:-1]])
    return outer.flatten(0, 1).t() @ before.flatten(0, 1), outer.sum((0, 1))


def _kept(gates: Tensor, kind: str) -> tuple[Any, ...]:
    """The sizes of what a walk keeps: of a GRU, its gates, and their shares of the states."""
    return (gates.shape[0], 2, *gates.shape[1:]) if kind == "gru" else (0,)


def _walked(
    gates: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None, kind: str, reverse: bool
) -> tuple[Tensor, Tensor]:
    """What ``_walk`` gives, without data."""
    states = gates.new_empty((*gates.shape[:-1], h.shape[-1]))
    return states, gates.new_empty(_kept(gates, kind))


def _walked_back(
    grad: Tensor, kept: Tensor, states: Tensor, h: Tensor, weight: Tensor, kind: str, reverse: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inner = states.new_empty((*states.shape[:-1], weight.shape[0]))
    return inner, torch.empty_like(h), weight.new_empty(weight.shape), weight.new_empty(len(weight))


_NETWORKS: dict[str, Any] = {"gru": torch.gru, "tanh": torch.rnn_tanh, "relu": torch.rnn_relu}


def _layer(
    kind: str, x: Tensor, h: Tensor, params: Sequence[Tensor], both: bool
) -> tuple[Tensor, Tensor]:
    biased = len(params) == (8 if both else 4)
    found: tuple[Tensor, Tensor]
    found = _NETWORKS[kind](x, h, params, biased, 1, 0.0, False, both, False)
    return found


def _laid_out(
    kind: str, x: Tensor, h: Tensor, params: Sequence[Tensor], both: bool
) -> tuple[Tensor, Tensor]:
    """What ``_layer`` gives, without data."""
    return x.new_empty((*x.shape[:-1], h.shape[0] * h.shape[-1])), h.new_empty(h.shape)


_DEFINED.impl("recurrent_layer", _layer, "CPU")
_DEFINED.impl("recurrent_layer", _laid_out, "Meta")
_DEFINED.impl("recurrence", _walk, "CPU")
_DEFINED.impl("recurrence_backward", _walk_back, "CPU")
_DEFINED.impl("recurrence", _walked, "Meta")
_DEFINED.impl("recurrence_backward", _walked_back, "Meta")
