"""Small parts of models, each of which reads or writes something that may change between calls.

Every block keeps the shape of what it is given, so that any row of them is a model. Features lie in
the last dimension (``rows``, ``steps``) or the second (``images``).
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
import torchsmith
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 4
KINDS = ("rows", "steps", "images")


class Rounded(torch.autograd.Function):
    """Rounds; the gradient is that of a steep line."""

    @staticmethod
    def forward(ctx, x, steepness):
        ctx.save_for_backward(x)
        ctx.steepness = steepness
        return (x * 2).round() / 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < ctx.steepness), None


@torchsmith.disable
def outside(x: torch.Tensor) -> torch.Tensor:
    """Is not compiled: the graph is cut here."""
    return x * 2


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift, self.flag, self.name = 1.5, 1, True, "relu"

    def forward(self, x):
        x = x * self.scale + self.shift
        x = getattr(torch, self.name)(x)
        return x * 2 if self.flag else x


class Counted(nn.Module):
    """Buffers that are written in place and replaced, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.training:
            self.count += 1
            self.mean.mul_(0.9).add_(x.detach().float().mean() * 0.1)
            self.seen = self.seen * 0.5 + x.detach().float().abs().amax() if x.numel() else x.sum()
        return x * (1 + self.count) - self.mean.to(x.dtype)


class Facts(nn.Module):
    """Numbers of what is so outside of the module."""

    def forward(self, x):
        n = x.requires_grad + 2 * self.training + 4 * torch.is_grad_enabled() + x.is_leaf
        n += 8 * x.is_contiguous() + 3 * (x.dtype is torch.float32) + x.stride(0) * 0.5
        n += 5 * torch.is_autocast_enabled("cpu") + 7 * torch.is_inference_mode_enabled()
        n += (x.grad_fn is None) + torch.are_deterministic_algorithms_enabled()
        return x + n / 16


class Branch(nn.Module):
    def forward(self, x):
        if x.detach().float().sum() > 0.37:  # no sum that may be zero but for rounding
            return x.tanh() * 3
        return x.sin() - 1


class Broken(nn.Module):
    def forward(self, x):
        return outside(x.cos()) + x


class Own(nn.Module):
    steepness = 2.0

    def forward(self, x):
        return Rounded.apply(x, self.steepness) + x


class Gain(nn.Module):
    """A parameter, read as itself, without history and through its data."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.other = nn.Parameter(torch.ones(1) / 2)

    def forward(self, x):
        if self.gain.requires_grad:
            x = x * self.gain
        x = x + self.gain.detach() * self.other.data
        return x * self.other if self.other is not self.gain else x - 1


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WIDTH, 1)

    def forward(self, x):
        if not x.numel():
            return x
        return x + self.table(x.detach().float().argmax(1).clamp(0, 3)).mean()


class Written(nn.Module):
    """Writes elements of what it has made."""

    def forward(self, x):
        y = x.clone()
        y[..., 0] = 1
        y[:1].mul_(x[:1])
        y.view(-1)[1:].add_(1) if y.is_contiguous() else y.t().add_(1) if y.dim() == 2 else y
        return y


class InPlace(nn.Module):
    """Writes what it was given."""

    def forward(self, x):
        return x.mul_(2).relu_()


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("tries", torch.zeros(1))
        self.fail = ""

    def forward(self, x):
        self.tries += 1
        y = x + self.tries
        if self.fail == "value":
            raise ValueError("asked for")
        if self.fail == "shape":
            return y + torch.ones(7, 7, 7)
        return y


class Inside(nn.Module):
    """Modes within the call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x):
        with torch.no_grad():
            a = x * 2
        with torch.autocast("cpu", enabled=False):
            b = self.linear(x.float().reshape(-1, 1)).view(x.shape).to(x.dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            c = self.linear(x.float().reshape(-1, 1)).view(x.shape).to(x.dtype)
        with torch.enable_grad():
            return a + b * c


class Hooked(nn.Module):
    def forward(self, x):
        y = x.exp().clamp(max=5)
        if y.requires_grad:
            y.register_hook(lambda g: g * 0.5)
        return y + x


class Kept(nn.Module):
    """Keeps what it was given and what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.last = None

    def forward(self, x):
        y = x * 0.5
        last, self.last = self.last, y.detach()
        if last is not None and last.shape == y.shape:
            return y + last
        return y


class Noise(nn.Module):
    def forward(self, x):
        y = x + torch.rand(x.shape) + torch.rand_like(x)
        return F.dropout(y, 0.25, self.training) if x.numel() else y


class Created(nn.Module):
    def forward(self, x):
        return x + torch.arange(x.shape[0]).view(-1, *[1] * (x.dim() - 1)) + torch.full((1,), 0.5)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Attention(nn.Module):
    """Of two heads, over the steps (or the rows)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (2, 2)).transpose(-2, -3) for t in (q, k, v))
        p = 0.2 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return y.transpose(-2, -3).flatten(-2)


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "scaled": Scaled,
    "counted": Counted,
    "facts": Facts,
    "branch": Branch,
    "broken": Broken,
    "own": Own,
    "gain": Gain,
    "looked": Looked,
    "written": Written,
    "in-place": InPlace,
    "failing": Failing,
    "inside": Inside,
    "hooked": Hooked,
    "kept": Kept,
    "noise": Noise,
    "created": Created,
    "dropout": lambda: nn.Dropout(0.5),
    "relu": lambda: nn.ReLU(inplace=True),
    "gelu": nn.GELU,
}
LAYERS: dict[str, dict[str, Callable[[], nn.Module]]] = {
    "rows": {
        "linear": lambda: nn.Linear(WIDTH, WIDTH),
        "bare": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
        "norm": lambda: nn.LayerNorm(WIDTH),
        "batch-norm": lambda: nn.BatchNorm1d(WIDTH),
        "batch-mean": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
        "bilinear": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
    },
    "steps": {
        "linear": lambda: nn.Linear(WIDTH, WIDTH),
        "norm": lambda: nn.LayerNorm(WIDTH),
        "root-norm": lambda: nn.RMSNorm(WIDTH),
        "attention": Attention,
        "mlp": lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, WIDTH)),
    },
    "images": {
        "conv": lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
        "bare": lambda: nn.Conv2d(WIDTH, WIDTH, 1, bias=False),
        "batch-norm": lambda: nn.BatchNorm2d(WIDTH),
        "group-norm": lambda: nn.GroupNorm(2, WIDTH),
        "pool": lambda: nn.MaxPool2d(3, 1, 1),
        "dropout": lambda: nn.Dropout2d(0.5),
    },
}
AROUND: dict[str, Callable[[nn.Module], nn.Module]] = {
    "checkpoint": Checkpointed,
    "residual": Residual,
}


def choose(kind: str, rng: random.Random) -> str:
    """The name of a block: ``linear``, ``residual:linear`` ..."""
    name = rng.choice(list(LAYERS[kind] if rng.random() < 0.5 else PLAIN))
    return f"{rng.choice(list(AROUND))}:{name}" if rng.random() < 0.15 else name


def block(name: str, kind: str) -> nn.Module:
    """The block of that name."""
    *around, name = name.split(":")
    module = {**PLAIN, **LAYERS[kind]}[name]()
    for each in around:
        module = AROUND[each](module)
    return module


class Net(nn.Module):
    """A row of blocks; what is done with a second argument and what is returned are attributes."""

    def __init__(self, kind: str, names: tuple[str, ...], join: str, returns: str) -> None:
        super().__init__()
        self.kind, self.join, self.returns = kind, join, returns
        self.blocks = nn.ModuleList([block(name, kind) for name in names])
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x, y=None, n=1):
        given = x
        if y is not None:
            match self.join:
                case "add":
                    x = x + y * n
                case "write":
                    y.add_(x.detach())
                    x = x * y
                case "same":
                    x = x * 2 if x is y else x + y
                case "both":
                    x.mul_(2)
                    y.add_(n)
                    x = x + y
        for each in self.blocks:
            x = each(x)
        match self.returns:
            case "pair":
                return x * n, x.sum()
            case "views":
                return x, x[..., :2], x.transpose(0, -1)
            case "arguments":
                return {"x": given, "part": given[:1], "y": y, "n": n + 1, "out": x}
            case "buffer":
                self.total += 1
                return [x + self.total, self.total, x.detach()]
            case "parameter":
                return x, next(self.parameters(), None)
        return x * n


RETURNS = ("one", "pair", "views", "arguments", "buffer", "parameter")
JOINS = ("add", "add", "same", "write", "both")
