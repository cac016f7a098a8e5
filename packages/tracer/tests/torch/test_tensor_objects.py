"""Tensors as objects: ``.data``, layouts, parameters and modules made inside, named results."""

import pytest
import torch
from torch import nn

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
O = torch.ones


def calls(fn, *inputs):
    """A program: ``fn`` on each input in turn, with what became of the inputs."""

    def body(C):
        f, out = C(fn), []
        for x in inputs or (X, Y):
            x = x.clone()
            out.append((f(x), x))
        return out

    return body


# --- data -------------------------------------------------------------------------------------


def data_is_an_alias(x):
    y = x * 1
    y.data.add_(1)
    return y, y * 2, x.data.requires_grad


def data_of_a_new_tensor(x):
    y = x.clone()
    y.data = x.t() + 1
    return y, y.shape, y.stride()


def data_of_parameters(C):
    m, ema = nn.Linear(4, 4), nn.Linear(4, 4)

    def run(x):
        m.weight.data.mul_(2)
        m.bias.data = m.bias.data + x[0]
        for p, e in zip(m.parameters(), ema.parameters()):
            e.data.mul_(0.9).add_(p.data, alpha=0.1)
        return m(x), ema(x)

    f = C(run)
    first = m.bias
    out = [f(X), f(Y)]
    return out, m.weight._version, m.bias is first, dict(m.state_dict()), dict(ema.state_dict())


def data_and_history(C):
    w = O(4).requires_grad_()

    def run(x):
        y = w * x
        w.data.mul_(3)
        return y.sum(), w.sum()

    f = C(run)
    a, b = f(X)
    (a + b).backward()
    return a, b, w, w.grad


def an_operator_fails_after_data_was_set(C):
    w = O(4).requires_grad_()

    def run(x, i):
        w.data = w.data * 2
        return w * x[i]

    f, seen = C(run), []
    for at in (1, 9, 0):
        try:
            seen.append(f(X, torch.tensor([at])))
        except IndexError:
            seen.append("out of range")
    return seen, w


def moves_a_module(C):
    m = nn.Linear(4, 4)
    f = C(lambda x: m.to(torch.float64)(x.double()))
    return f(X), f(Y), m.weight


# --- layouts ----------------------------------------------------------------------------------


def layouts(x):
    y = x.clone()
    y.t_()
    y.unsqueeze_(0)
    y.squeeze_(0)
    y.transpose_(0, 1).swapaxes_(0, 1)
    z = x.clone().as_strided_((2, 2), (1, 2))
    return y, z, y.stride(), y.is_contiguous()


def resized(x):
    y = x.clone()
    y.resize_(2, 3)
    z = torch.empty(0)
    z.set_(x.clone())
    return y, z, z.shape


def detached(C):
    def run(x):
        y = x * 2
        z = y.detach_()
        return z is y, y, y.requires_grad, y.grad_fn

    f = C(run)
    return f(O(3).requires_grad_()), f(O(3).requires_grad_())


def layout_of_an_input(C):
    f = C(lambda x: x.t_().unsqueeze_(0))
    a, b = X.clone(), Y.clone()
    return f(a), f(b), a, b


# --- parameters, buffers, modules ------------------------------------------------------------


def parameters(x):
    p, q = nn.Parameter(x * 2), nn.Parameter(x, requires_grad=False)
    q.data.add_(1)
    return p, q, isinstance(p, nn.Parameter), type(p) is nn.Parameter, p.requires_grad, (p + 1) * q


def buffers(x):
    b = nn.Buffer(x + 1, persistent=False)
    return isinstance(b, nn.Buffer), isinstance(x, nn.Buffer), b.persistent, b


def legacy_types(x):
    kinds = (torch.FloatTensor, torch.LongTensor, torch.Tensor, nn.Parameter)
    return (
        [isinstance(x, kind) for kind in kinds],
        isinstance(x, (torch.DoubleTensor, torch.HalfTensor)),
        x.type(),
        x.type(torch.DoubleTensor),
        x.type("torch.LongTensor"),
        torch.typename(x),
    )


def a_module(C):
    def run(x):
        m = nn.Sequential(nn.Linear(4, 2, bias=False), nn.BatchNorm1d(2))
        with torch.no_grad():
            m[0].weight.fill_(0.5)
        return m(x), m

    f, out = C(run), []
    for x in (X, Y):
        y, m = f(x)
        y.sum().backward()
        out.append((y, dict(m.state_dict()), m[0].weight.grad, [type(p) for p in m.parameters()]))
    return out


class Registers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.zeros(4))
        self.w = nn.Parameter(torch.ones(4))
        self.n = 0
        self.register_parameter("none", None)

    def forward(self, x):
        self.b = self.b + x[0]
        self.n += 1
        self.last = x
        if not hasattr(self, "cache"):
            self.register_buffer("cache", x * 2, persistent=False)
        if self.n == 2:
            self.none = nn.Parameter(x[0] * 3)
        if self.n == 3:
            self.sub = nn.Identity()
            del self.cache
            self.lone = nn.Buffer(x[1])
        if self.n == 4:
            self.w = nn.Parameter(self.w * 2)
            del self.sub
        return x + self.b + self.w


def registrations(C):
    m = Registers()
    f, seen = C(m), []
    for _ in range(5):
        seen.append(f(X))
        names = [list(m.state_dict()), [n for n, _ in m.named_buffers()], list(m.__dict__)]
        seen.append((names, [n for n, _ in m.named_parameters()], list(m._modules)))
    return seen, dict(m.state_dict())


def wrong_registrations(C):
    m, seen = nn.Linear(4, 4), []

    def a_tensor(x):
        m.weight = x

    def a_dot(x):
        m.register_buffer("a.b", x)

    def taken(x):
        m.register_buffer("in_features", x)

    def a_result(x):
        m.made = nn.Parameter(x * 2)
        m.register_parameter("w", m.weight * 2)

    for fn in (a_tensor, a_dot, taken, a_result):
        f = C(fn)
        for _ in range(2):
            try:
                f(X)
            except Exception as e:
                seen.append((type(e), str(e)))
    return seen, list(m._parameters)


# --- named results ----------------------------------------------------------------------------


def named(x):
    m, q = x.max(1), torch.linalg.qr(x)
    values, indices = x.sort()
    least, most = torch.aminmax(x)
    return (
        (m.values, m.indices, m[0], len(m), type(m), isinstance(m, tuple)),
        (isinstance(m, torch.return_types.max), m, values, indices, q.Q, least, most),
        (torch.max(x, dim=0), x.kthvalue(1).indices, x.topk(2).values, x.median(0)[1]),
        (torch.frexp(x).mantissa, torch.linalg.svd(x).S, torch.slogdet(x @ x.t()).logabsdet),
    )


def given(C):
    f = C(lambda r: (r.values + 1, r.indices, type(r).__name__, r, r[0]))
    return f(X.max(1)), f(Y.max(1)), f(X.sort())


WHOLE = [
    calls(data_is_an_alias), calls(data_of_a_new_tensor), data_of_parameters, data_and_history,
    moves_a_module, calls(layouts), calls(resized), detached, calls(parameters), calls(buffers),
    calls(legacy_types, X, X.double(), Y.long()), a_module, registrations,
    calls(named), given,
]  # fmt: skip
NAMES = [
    "alias", "born", "of parameters", "history", "to", "layouts", "resized", "detached",
    "parameters", "buffers", "legacy", "module", "registrations", "named", "given",
]  # fmt: skip


@pytest.mark.parametrize("body", WHOLE, ids=NAMES)
def test_in_one_graph(program, body):
    program(body)


@pytest.mark.parametrize(
    "body", [an_operator_fails_after_data_was_set, layout_of_an_input, wrong_registrations]
)
def test_agrees_across_breaks(program, body):
    program(body, broken=True)
