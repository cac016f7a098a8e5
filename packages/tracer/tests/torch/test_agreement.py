"""Programs that must agree with eager, whether they are captured whole or break."""

import copy
import functools
import math
import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


LSTM = nn.LSTM(4, 3)


def stores(x):
    y = x.clone()
    y[x > 0] = 1
    y[:, 1] += 2
    y[[0, 1]] = 3
    return y


def require_grad(x):
    y = x.detach()
    y.requires_grad_(True)
    return (y * 2).requires_grad


def set_requires_grad(x):
    y = x.detach()
    y.requires_grad = True
    return (y * 2).requires_grad


def change_layout(x):
    y = x.clone()
    y.t_()
    y.unsqueeze_(0)
    return y


def backward(x):
    y = x.clone().requires_grad_()
    (y * y).sum().backward()
    return y.grad


def array_in_try(x):
    try:
        return (x.numpy() * 2).tolist()
    except TypeError:
        return "an array multiplies"


def sizes(x):
    return (
        x.shape + (1,),
        (1,) + x.shape,
        x.shape * 2,
        x.shape[1:],
        x.shape[::-1],
        4 in x.shape,
        list(x.shape),
        tuple(x.shape),
        x.shape.index(4),
        x.shape.count(3),
        sum(x.shape),
        max(x.shape),
        hash(x.shape) == hash((3, 4)),
        str(x.shape),
        repr(x.size()),
        [*x.shape],
        isinstance(x.shape, tuple),
        x.shape.numel(),
        math.prod(x.shape),
        x.shape == (3, 4),
        (3, 4) == x.shape,
        x.shape != [3, 4],
    )


WHOLE = {
    "einsum": lambda x: torch.einsum("ij,kj,kl->il", x, x, x),
    "data": lambda x: (x.data + 1, x.detach()),
    "sizes": sizes,
    "reversed": lambda x: [r + 1 for r in reversed(x)],
    "zip": lambda x: [a * i + b for i, (a, b) in enumerate(zip(x, x))],
    "sum": lambda x: sum(x),
    "abs": lambda x: (abs(x), pow(x, 2)),
    "dtypes": lambda x: (
        x.dtype == torch.float32,
        x.dtype is torch.float32,
        str(x.dtype),
        x.dtype in (torch.float16, torch.float32),
        {torch.float32: 1}[x.dtype],
    ),
    "devices": lambda x: (x.device.type, str(x.device), torch.zeros(2, device=x.device)),
    "nest": lambda x: {"a": x, "b": [x + 1, {"c": x * 2}]},
    "tensor as key": lambda x: {x: 1}[x],
    "tensor in list": lambda x: any(y is x for y in [x, x + 1]),
    "pytree": lambda x: torch.utils._pytree.tree_map(lambda t: t + 1, {"a": x, "b": (x,)}),
    "init": lambda x: nn.init.zeros_(x.clone()),
    "pad": lambda x: nn.utils.rnn.pad_sequence([x[:2], x]),
    "reduce": lambda x: functools.reduce(torch.add, [x, x, x]),
    "getter": lambda x: operator.itemgetter(0)(x),
    "broadcast": lambda x: torch.broadcast_tensors(x, x[0]),
    "generator": lambda x: torch.stack(tuple(x[i] for i in range(3))),
    "complex": lambda x: (x + 1j).abs(),
    "types": lambda x: (type(x) is torch.Tensor, type(x).__name__, x.__class__.__name__),
    "to": lambda x: x.to(device="cpu", dtype=torch.float64, non_blocking=True, copy=True),
    "keywords": lambda x: torch.sum(input=x, dim=0) + torch.add(input=x, other=x, alpha=2),
    "in place": lambda x: (x.relu_(), x.clamp_(max=1), x.zero_())[0],
    "copy_": lambda x: x.clone().copy_(x * 2),
    "masked": lambda x: x.masked_fill(x > 0, 0.0),
    "stores": stores,
    "normalise": lambda x: x.pow(2).mean(-1, keepdim=True).rsqrt().type_as(x),
    "statistics": lambda x: torch.var_mean(x, dim=1, keepdim=True),
    "gumbel": lambda x: F.gumbel_softmax(x, hard=True),
}
BROKEN = {
    "vmap": lambda x: torch.vmap(lambda r: r.sum())(x) + 1,
    "autograd function": lambda x: Double.apply(x) + 1,
    "backward": backward,
    "lstm": lambda x: LSTM(x[None])[0] + 1,
    "requires_grad_": require_grad,
    "requires_grad": set_requires_grad,
    "layout in place": change_layout,
    "arrays": lambda x: torch.from_numpy(x.numpy() * 2) + 1,
    "array in try": array_in_try,
    "parameter": lambda x: nn.Parameter(x) * 2,
    "layer made inside": lambda x: nn.Linear(4, 2)(x),
    "own generator": lambda x: torch.rand(3, generator=torch.Generator().manual_seed(1)) + x[:, 0],
    "max": lambda x: max(x.sum(), x.mean()),
    "deepcopy": lambda x: copy.deepcopy(x) + 1,
    "where": lambda x: torch.where(x > 0),
    "is_nonzero": lambda x: torch.is_nonzero(x.sum()),
    "allclose": lambda x: (torch.allclose(x, x), torch.equal(x, x + 1)),
    "index of list": lambda x: [10, 20, 30][torch.tensor(1)],
    "range": lambda x: list(range(torch.tensor(3))),
    "out": lambda x: torch.mul(x, 2, out=torch.empty(3, 4)),
    "item": lambda x: x + 1 if x.sum().item() > 0 else x - 1,
    "round": lambda x: round(x),
    "bad index": lambda x: x[5],
    "bad view": lambda x: x.view(7),
    "bad attribute": lambda x: x.foo,
    "bad len": lambda x: len(x.sum()),
    "bad iteration": lambda x: [a for a in x.sum()],
    "bad operand": lambda x: x + "a",
    "bad operand None": lambda x: x + None,
    "bad divmod": lambda x: divmod(x, 2),
    "bad call": lambda x: x(1),
}


@pytest.mark.parametrize("name", WHOLE)
def test_captured_whole(check, name):
    check(WHOLE[name], X)


@pytest.mark.parametrize("name", BROKEN)
def test_right_around_breaks(agree, name):
    agree(BROKEN[name], X)
