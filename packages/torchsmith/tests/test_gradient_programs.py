"""Programs with gradients that eager and compiled code must agree about, over several calls."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torchsmith


@pytest.mark.parametrize("wanted", [False, True])
def test_tangents_of_forward_differentiation_go_through(wanted):
    def function(x):
        return x.sin() * 2

    compiled = torchsmith.compile(function)
    x = torch.ones(3, requires_grad=wanted)
    for inside in (False, True, False, True):
        if not inside:
            torch.testing.assert_close(compiled(x), function(x))
            continue
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.full((3,), 2.0))
            got, want = (forward_ad.unpack_dual(f(dual)) for f in (compiled, function))
            torch.testing.assert_close(got.primal, want.primal)
            torch.testing.assert_close(got.tangent, want.tangent)
            assert compiled(dual).requires_grad is wanted


def made_leaf(x):
    y = x.detach().view(2, 2).requires_grad_()
    return y, y * 2


def made_parameter(x):
    y = torch.full((2,), 3.0, requires_grad=True)
    return y, (x[:2] * y).sum()


@pytest.mark.parametrize("function", [made_leaf, made_parameter])
def test_leaves_that_a_program_makes(function):
    compiled = torchsmith.compile(function)
    for _ in range(2):
        sides = []
        for each in (function, compiled):
            y, result = each(torch.ones(4))
            result.sum().backward()
            sides.append((y.is_leaf, y.requires_grad, y.grad.tolist(), result.requires_grad))
        assert sides[0] == sides[1]


def copied(b, x):
    b.copy_(x * 2)
    return b.sin()


def put(b, x):
    b.index_copy_(0, torch.tensor([2, 0]), x[:2])
    return x * 3


def added(b, x):
    b[1:] += x[1:]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [copied, put, added])
def test_what_gets_a_history_in_the_graph_is_compiled_as_it_came(function, dynamic, caplog):
    torchsmith.reset()
    torchsmith.clear_metrics()
    compiled = torchsmith.compile(function, dynamic=dynamic)
    with caplog.at_level("INFO", "torchsmith.backend"):
        for _ in range(2):
            sides = []
            for each in (function, compiled):
                b, x = torch.ones(4), torch.arange(4.0, requires_grad=True)
                made = each(b, x)
                (b * b + (0 if made is None else made)).sum().backward()
                sides.append([b.detach(), x.grad])
            torch.testing.assert_close(*sides)
    assert not caplog.records
    assert {graph.kind for graph in torchsmith.metrics().graphs} == {"forward", "backward"}


LONE = {
    "linear": (lambda: torch.nn.Linear(4, 3), (2, 4)),
    "convolution": (lambda: torch.nn.Conv1d(4, 3, 2, padding="same"), (2, 4, 5)),
    "lstm": (lambda: torch.nn.LSTM(4, 3, batch_first=True), (2, 5, 4)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LONE)
def test_one_operator_of_a_library_keeps_its_gradient(name, dtype):
    torchsmith.reset()
    torchsmith.clear_metrics()
    make, size = LONE[name]
    layer = make().to(dtype)
    compiled = torchsmith.compile(layer)
    for length in range(3):
        x = torch.randn(size[0] + length, *size[1:], dtype=dtype, requires_grad=True)
        sides = []
        for each in (layer, compiled):
            y = each(x)
            (y if isinstance(y, torch.Tensor) else y[0]).sin().sum().backward()
            sides.append([x.grad, *(p.grad for p in layer.parameters())])
            layer.zero_grad()
            x.grad = None
        torch.testing.assert_close(*sides)
    found = {graph.outcome for graph in torchsmith.metrics().graphs}
    assert found == {"eager" if dtype is torch.float32 else "compiled"}
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))
    assert torchsmith.metrics().graphs[-1].outcome == "compiled"


def test_an_operator_with_others_is_compiled():
    torchsmith.clear_metrics()
    layer = torch.nn.Linear(4, 3)
    torchsmith.compile(lambda x: layer(x).relu())(torch.randn(2, 4)).sum().backward()
    assert {graph.outcome for graph in torchsmith.metrics().graphs} == {"compiled"}


def thrice(x):
    x.register_hook(lambda grad: grad * 3)
    return x


HOOKED = {
    "a view of an input": lambda x: thrice(x.view(-1)),
    "a view of a result": lambda x: thrice((x * 2).t()),
    "beside its base": lambda x: (lambda y: (thrice(y.t()), y))(x * 2),
    "a view of a hooked view": lambda x: thrice(x.t()).unsqueeze(0),
    "used, too": lambda x: (lambda y: (y * 2, y))(thrice(x.expand(2, 3, 4))),
    "no view": lambda x: thrice(x * 2),
    "a base": lambda x: thrice(x * 2).t(),
    "an input": lambda x: thrice(x).t(),
}


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("name", HOOKED)
def test_hooks_on_results_change_gradients(name, history):
    function = HOOKED[name]
    sides = []
    for each in (function, torchsmith.compile(function)):
        x = torch.arange(12.0).view(3, 4).requires_grad_()
        results = each(x * 1 if history else x)
        results = results if isinstance(results, tuple) else (results,)
        alone = [torch.autograd.grad(r.sum(), x, retain_graph=True)[0] for r in results]
        sum((r * r).sum() for r in results).backward()
        sides.append([*alone, x.grad])
    torch.testing.assert_close(*sides)


class Saved(torch.autograd.Function):
    """Its gradient is what it kept, whatever comes from behind."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0]


KEPT = {
    "argument": lambda x: Saved.apply(x).sum(),
    "computed": lambda x: Saved.apply(x + 1).sum(),
    "result": lambda x: (Saved.apply(x.sin()), x.sin()),
    "nothing": lambda x: (x[:0] + 3).cummax(-1)[0].sum(),
}


@pytest.mark.parametrize("name", KEPT)
def test_gradients_that_the_forward_pass_computed(name):
    grads = []
    for function in (KEPT[name], torchsmith.compile(KEPT[name])):
        leaf = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        for _ in range(2):
            result = function(leaf)
            loss = result if isinstance(result, torch.Tensor) else sum(r.sum() for r in result)
            loss.backward(retain_graph=True)
            loss.backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


class Twins(torch.autograd.Function):
    """Two results in one memory, each with a gradient of its own."""

    @staticmethod
    def forward(ctx, x, way):
        result = x.exp()
        return result, way(result)

    @staticmethod
    def backward(ctx, first, second):
        return first + 2 * second.view_as(first), None


@pytest.mark.parametrize("way", [torch.detach, torch.flatten, lambda x: x.view(-1)])
def test_results_of_a_function_that_share_memory_have_gradients_each(way):
    grads = []
    for function in (Twins.apply, torchsmith.compile(lambda x, way: Twins.apply(x + 0, way))):
        leaf = torch.ones(2, 3, requires_grad=True)
        results = function(leaf, way)
        assert all(result.requires_grad for result in results)
        sum(result.sum() for result in results).backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)
