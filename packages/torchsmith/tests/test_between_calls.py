"""What happens between two calls, or between a call and its backward pass: families of faults that
``fuzz_calls.py`` found."""

import itertools

import pytest
import torch
import torch.nn.functional as F
import torchsmith
from torch import nn

W = torch.ones(4, 4)


def _buffer(x):
    return x.abs().amax() + torch.ones(1)


def _other_layout(x):
    return (x.t().contiguous() * 2).t() + x.amax()


def _twice_detached(x):
    y = x * 2
    return y.detach(), y + 1, y.detach()


@pytest.mark.parametrize("wanted", [False, True])
def test_detached_results_are_no_views_of_each_other(wanted):
    for run in (_twice_detached, torchsmith.compile(_twice_detached)):
        first, _, last = run(torch.ones(2, 3, requires_grad=wanted))
        assert not first._is_view() and not last._is_view()
        assert first.data_ptr() == last.data_ptr()
        w = torch.ones(3, requires_grad=True)
        last.mul_(w)
        assert last.requires_grad and not first.requires_grad


@pytest.mark.parametrize("shape", [(6,), (3, 2, 1), (1, 6)])
def test_detached_results_have_the_shape_of_what_they_detach(shape):
    """Also where other calls read their memory in another shape."""

    def fn(x, w):
        y = x * 2
        return y.view(6, 1) @ w, y.view(shape).cumsum(0), y.detach()

    x, w = torch.randn(2, 3), torch.randn(1, 4)
    with torch.no_grad():
        for got, want in zip(torchsmith.compile(fn)(x, w), fn(x, w), strict=True):
            assert got.shape == want.shape and got.stride() == want.stride()
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "function",
    [
        _buffer,
        _other_layout,
        lambda x: F.dropout(x.t(), 0.5),
        lambda x: F.gelu(F.linear(x[None], W)),
        lambda x: F.gelu(torch.matmul(x[None], W)).amax(0) + 1,
        lambda x: torch.bmm(x[None], W[None]).squeeze(0).sin(),
    ],
)
def test_results_in_memory_used_before_are_no_views(function):
    """Views that were made without gradients cannot be written by what has some."""
    compiled = torchsmith.compile(function, options={"rng": "eager"})
    for make in (torch.no_grad, torch.enable_grad):
        sides = []
        for run in (function, compiled):
            torch.manual_seed(0)
            with make():
                y = run(torch.arange(8.0).view(2, 4))
            before = y.clone()
            assert not y._is_view()
            w = torch.full((), 2.0, requires_grad=True)
            y.detach_().mul_(w)
            y.sum().backward()
            sides.append((before, w.grad, y.stride()))
        torch.testing.assert_close(sides[1][0], sides[0][0])
        torch.testing.assert_close(sides[1][1], sides[0][1])
        assert sides[1][2] == sides[0][2]


TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NORMS = {
    "root-mean-square": lambda x, w: F.rms_norm(x, (4,), w),
    "layer": lambda x, w: F.layer_norm(x, (4,), w, w),
    "layer, weight": lambda x, w: F.layer_norm(x, (4,), w),
    "group": lambda x, w: F.group_norm(x, 2, w, w),
    "batch": lambda x, w: F.batch_norm(x, w * w, w * w, w, w),
    "batch, training": lambda x, w: F.batch_norm(x, w.clone(), w.clone(), w, w, True),
    "loss": lambda x, w: F.cross_entropy(x, torch.tensor([1, 2, 0]), w),
}


@pytest.mark.parametrize("name", NORMS)
def test_parameters_of_another_type_than_the_input(name):
    """What a model is after ``.to(dtype)``, when the input is not: eager's type, or its error."""
    torch.manual_seed(0)
    values = torch.randn(3, 4), torch.rand(4) + 0.5
    for kinds in itertools.product(TYPES, TYPES):
        torchsmith.reset()  # more kinds than one function is compiled for
        compiled = torchsmith.compile(NORMS[name])
        given = [x.to(kind) for x, kind in zip(values, kinds)]
        try:
            want = NORMS[name](*given)
        except RuntimeError as error:
            with pytest.raises(RuntimeError) as raised:
                compiled(*given)
            assert str(raised.value) == str(error)
            continue
        torch.testing.assert_close(compiled(*given), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize(
    "last", [lambda: nn.LayerNorm(4), lambda: nn.Softmax(-1), lambda: nn.BatchNorm1d(4)]
)
def test_backward_passes_under_autocast(last, forward, first):
    """Autocast may be on in a backward pass, and may not have been before: the halves have the
    types that they were compiled for."""
    torch.manual_seed(0)
    model = nn.Sequential(last(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), last())
    compiled = torchsmith.compile(model)
    sides = []
    for run in (model, compiled):
        model.zero_grad()
        x = (torch.arange(12.0).view(3, 4) / 7).sin().requires_grad_()
        if first:
            (run(x) ** 2).sum().backward()
        x.grad = None
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=forward):
            loss = (run(x) ** 3).sum()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss.backward()
        sides.append([x.grad, *(p.grad for p in model.parameters())])
    for mine, true in zip(sides[1], sides[0], strict=True):
        torch.testing.assert_close(mine, true, rtol=0.1, atol=0.2)


def test_derivatives_of_gradients_when_parameters_were_frozen_meanwhile():
    sides = []
    for compile in (lambda m: m, torchsmith.compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        x = torch.ones(2, 4, requires_grad=True)
        y = compile(model)(x)
        model[0].weight.requires_grad_(False)
        (gradient,) = torch.autograd.grad(y.sum(), [x], create_graph=True)
        gradient.pow(2).sum().backward()
        assert model[0].weight.grad is None
        sides.append((gradient, x.grad, model[0].bias.grad))
    for mine, true in zip(sides[1], sides[0], strict=True):
        torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kinds", [(torch.float64, torch.float32), (torch.float32, torch.bfloat16)])
@pytest.mark.parametrize(
    "product", [F.linear, lambda x, w: x @ w, torch.mm, lambda x, w: F.linear(x[None], w, w[0])]
)
def test_draws_and_writes_before_a_product_of_mixed_types(product, kinds, dynamic):
    """Which fails when it runs: what was done before it has been done once."""

    def function(x, count, w):
        count.add_(1)
        y = x + torch.rand(x.shape, dtype=x.dtype)
        return product(F.dropout(y, 0.5), w)

    compiled = torchsmith.compile(function, dynamic=dynamic, options={"rng": "eager"})
    for rows in (4, 4, 6):
        sides = []
        for run in (function, compiled):
            torch.manual_seed(0)
            count = torch.zeros(())
            x, w = (torch.ones(n, 4, dtype=k) for n, k in zip((rows, 4), kinds))
            with pytest.raises(RuntimeError):
                run(x, count, w)
            sides.append((count.item(), torch.get_rng_state().tolist()))
        assert sides[0] == sides[1]


class _Written(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1, bias=False)

    def forward(self, x):
        y = self.conv(x).clone()
        y.view(-1)[1:].add_(1)
        return y, y.mean()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "laid",
    [
        lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
        lambda t: t.to(memory_format=torch.channels_last),
        lambda t: t[:1, :1, :1, :1].expand(t.shape),
    ],
)
def test_tangents_that_no_half_can_be_made_for(laid, dynamic):
    """They are copied into tangents that lie row by row, of any sizes, too."""
    torch.manual_seed(0)
    model = _Written()
    compiled = torchsmith.compile(model, dynamic=dynamic)
    for size in (3, 4, 3):
        sides = []
        for run in (model, compiled):
            model.zero_grad()
            image = torch.ones(2, 4, size, 3)
            run(image)[0].backward(laid(torch.arange(image.numel()).view(image.shape) / 50))
            sides.append(model.conv.weight.grad)
        torch.testing.assert_close(sides[1], sides[0])


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm1d(4), lambda: nn.LayerNorm(4), nn.Softplus])
def test_first_backward_passes_in_inference_mode(layer):
    """The half is compiled then, of tensors that are none of inference mode."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), layer())
    compiled = torchsmith.compile(model)
    for laid in (lambda t: t, lambda t: t.t().contiguous().t()):
        sides = []
        for run in (model, compiled):
            model.zero_grad()
            y = run(torch.arange(12.0).view(3, 4) / 7)
            with torch.inference_mode():
                y.backward(laid(torch.arange(12.0).view(3, 4) / 5))
            sides.append([p.grad for p in model.parameters()])
        for mine, true in zip(sides[1], sides[0], strict=True):
            assert mine.is_inference() == true.is_inference()
            torch.testing.assert_close(mine, true, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize(
    "layer", [lambda: nn.Tanh(), lambda: nn.LayerNorm(4), lambda: nn.Linear(4, 3)]
)
def test_gradients_of_gradients_in_inference_mode(layer, create):
    """Which are asked for in vain: eager gives gradients without a history."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), layer())
    compiled = torchsmith.compile(model)
    sides = []
    for run in (model, compiled):
        x = (torch.arange(12.0).view(3, 4) / 7).requires_grad_()
        found = []
        for mode in (torch.inference_mode, torch.enable_grad):
            y = run(x)
            tangent = torch.ones_like(y)
            with mode():
                inputs = [x, *model.parameters()]
                found += torch.autograd.grad(y, inputs, tangent, create_graph=create)
        sides.append([(g, g.is_inference(), g.requires_grad) for g in found])
    for (mine, *facts), (true, *expected) in zip(sides[1], sides[0], strict=True):
        assert facts == expected
        torch.testing.assert_close(mine, true, rtol=1e-3, atol=1e-4)
