"""``options={"freezing": True}``: parameters and buffers are constants; results are eager's."""

from __future__ import annotations

import pytest
import torch
import torchsmith_tracer as tracer
from torch import nn
from torchsmith_fx_backend import errors, smith
from torchsmith_fx_backend._src import driver
from torchsmith_fx_backend._src.freezing import Frozen


@pytest.fixture
def frozen(monkeypatch):
    """Compiles with freezing; ``frozen.graphs`` are the graphs, frozen, in order of compilation."""
    torch.manual_seed(1)
    graphs: list[torch.fx.GraphModule] = []
    original = driver.functional_graph

    def note(*args, **kwargs):
        result = original(*args, **kwargs)
        graphs.append(result.module)
        return result

    monkeypatch.setattr(driver, "functional_graph", note)

    def compiled(model, **options):
        return tracer.compile(model, backend="smith", options={"freezing": True, **options})

    compiled.graphs = graphs
    return compiled


def with_statistics(model):
    torch.manual_seed(0)
    for module in model.modules():
        if getattr(module, "running_mean", None) is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.affine:
            module.weight.data.uniform_(-2, 2)
            module.bias.data.normal_()
    return model.eval()


def names(graph):
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


FOLDED = {
    "2-d": (lambda: [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)], (2, 3, 6, 6)),
    "no bias": (lambda: [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)], (2, 3, 6, 6)),
    "no affine": (lambda: [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)], (2, 3, 6, 6)),
    "1-d": (lambda: [nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)], (2, 3, 6)),
    "3-d": (lambda: [nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4)], (2, 2, 4, 4, 4)),
    "groups": (lambda: [nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)], (2, 4, 6, 6)),
    "transposed": (lambda: [nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)], (2, 3, 6, 6)),
    "transposed groups": (
        lambda: [nn.ConvTranspose2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)],
        (2, 4, 6, 6),
    ),
    "linear": (lambda: [nn.Linear(3, 4), nn.BatchNorm1d(4)], (5, 3)),
    "linear, no bias": (lambda: [nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4)], (5, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FOLDED)
def test_a_batch_norm_is_folded_into_the_weights(frozen, name, dtype):
    make, shape = FOLDED[name]
    model = with_statistics(nn.Sequential(*make())).to(dtype)
    x = torch.randn((64, *shape[1:]), dtype=dtype)  # the largest errors of few numbers vary
    with torch.no_grad():
        wanted = model(x)
        got = frozen(model)(x)
    exact = with_statistics(nn.Sequential(*make())).double()
    with torch.no_grad():
        exact.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
        ideal = exact(x.double())
    error, own = (got - ideal).abs().max(), (wanted - ideal).abs().max()
    assert error <= 4 * own + 1e-12
    assert got.dtype == dtype and got.stride() == wanted.stride()
    (graph,) = frozen.graphs
    assert len([n for n in names(graph) if "conv" in n or "linear" in n]) == 1
    assert not [n for n in names(graph) if "mul" in n or "add" in n or "rsqrt" in n]


class Chain(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("scale", torch.tensor([1.0, -2.0, 0.5, 3.0]))
        self.register_buffer("row", torch.randn(5, 1))
        self.register_buffer("zero", torch.tensor([1.0, 0.0, 2.0, 1.0]))
        self.step = step

    def forward(self, x):
        return self.step(self, self.linear(x))


STEPS = {  # what happens behind a layer, and how many operators of it are left
    "scaled": (lambda m, y: y * m.scale, 0),
    "from the left": (lambda m, y: m.scale - y, 0),
    "divided": (lambda m, y: (y - 1) / m.scale, 0),
    "a chain": (lambda m, y: (2 * y + m.scale) * m.scale - 3, 0),
    "divides": (lambda m, y: m.scale / y, 1),
    "per row": (lambda m, y: y * m.row, 1),
    "used twice": (lambda m, y: y * m.scale + y.sin(), 3),
    "squared": (lambda m, y: y * y, 1),
    "not finite": (lambda m, y: y / m.zero, 1),
    "another dtype": (lambda m, y: y.double() * m.scale, 2),
    "returned, too": (lambda m, y: (y, y * m.scale), 1),
    "alpha": (lambda m, y: torch.add(y, m.scale, alpha=2), 0),
}


@pytest.mark.parametrize("name", STEPS)
def test_only_what_is_affine_in_each_channel_is_folded(frozen, name):
    step, left = STEPS[name]
    model = Chain(step)
    x = torch.randn(5, 3)
    with torch.no_grad():
        torch.testing.assert_close(frozen(model)(x), model(x))
    if name != "alpha":
        assert len(names(frozen.graphs[0])) == 1 + left


def test_constants_are_computed_once(frozen):
    weight = nn.Parameter(torch.randn(4, 3))
    model = nn.Module()
    model.weight = weight
    model.register_buffer("table", torch.randn(4))

    def forward(self, x):
        mask = torch.arange(4) < 2
        return x @ (self.weight.softmax(-1) * 2).t() + torch.where(mask, self.table.exp(), 0.0)

    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(frozen(lambda x: forward(model, x))(x), forward(model, x))
    assert len(names(frozen.graphs[0])) == 2  # the product and the sum


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())
            for _ in range(3)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


CHANGES = {
    "in place": lambda m: m.blocks[0][0].weight.mul_(2),
    "a buffer": lambda m: m.blocks[1][1].running_mean.add_(1),
    "replaced": lambda m: setattr(m.blocks[0][0], "bias", nn.Parameter(torch.ones(3))),
    "a state": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "an assigned state": lambda m: m.load_state_dict(
        {k: v + 1 for k, v in m.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_leaves_a_trace_is_seen(frozen, name):
    model = with_statistics(Stack())
    x = torch.randn(1, 3, 5, 5)
    with torch.no_grad():
        compiled = frozen(model)
        torch.testing.assert_close(compiled(x), model(x))
        CHANGES[name](model)
        torch.testing.assert_close(compiled(x), model(x))


def test_what_keeps_changing_is_no_longer_frozen(frozen, monkeypatch):
    monkeypatch.setattr("torchsmith_fx_backend._src.freezing.MAX_REFROZEN", 2)
    model = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    with torch.no_grad():
        compiled = frozen(model)
        for _ in range(5):
            torch.testing.assert_close(compiled(x), model(x))
            model.weight.mul_(0.5)
    assert len(frozen.graphs) == 3  # the last with weights as inputs


def test_modules_that_share_a_graph_keep_their_own_weights(frozen):
    block, other = nn.Linear(3, 3), nn.Linear(3, 3)
    graph = torch.fx.symbolic_trace(lambda x, w, b: nn.functional.linear(x, w, b) * 2)
    x = torch.randn(2, 3)
    with torch.no_grad():
        compiled = smith(graph, [x, block.weight, block.bias], options={"freezing": True})
        assert isinstance(compiled, Frozen)
        for module in (block, other, block):
            torch.testing.assert_close(compiled(x, module.weight, module.bias), module(x) * 2)
    assert len(compiled._variants) == 2


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("window", self.seen[:2])
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        self.seen.add_(x)
        return self.linear(self.seen) + self.window.sum()


def test_buffers_that_are_written_are_not_frozen(frozen):
    model, eager = Cache(), Cache()
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():
        compiled = frozen(model)
        for _ in range(3):
            torch.testing.assert_close(compiled(torch.ones(4)), eager(torch.ones(4)))
    assert torch.equal(model.seen, eager.seen)


def test_what_the_caller_gets_is_no_constant(frozen):
    model = nn.Linear(3, 3)

    def program(x):
        return model.weight, model.weight.t(), model.bias.exp(), x + model.bias

    with torch.no_grad():
        compiled = frozen(program)
        first = compiled(torch.ones(3))
        assert first[0] is model.weight
        assert first[1].data_ptr() == model.weight.data_ptr()
        first[2].zero_()
        torch.testing.assert_close(compiled(torch.ones(3)), program(torch.ones(3)))


def test_gradients_are_refused(frozen):
    model = nn.Linear(3, 3)
    with pytest.raises(Exception, match="TS-B009") as caught:
        frozen(model)(torch.randn(2, 3))
    assert "no_grad" in str(caught.value)
    with pytest.raises(errors.FreezingError):
        smith(
            torch.fx.symbolic_trace(lambda x: x + 1),
            [torch.ones(2, requires_grad=True)],
            freezing=True,
        )
    model.requires_grad_(False)
    x = torch.randn(2, 3)
    torch.testing.assert_close(frozen(model)(x), model(x))


@pytest.mark.parametrize("dynamic", [True, None])
def test_sizes_may_vary(frozen, dynamic):
    model = with_statistics(Stack())
    compiled = tracer.compile(model, backend="smith", options={"freezing": True}, dynamic=dynamic)
    with torch.no_grad():
        for size in (5, 7, 9):
            x = torch.randn(2, 3, size, size)
            torch.testing.assert_close(compiled(x), model(x))


def test_a_stack_on_the_cpu_runs_with_packed_weights(frozen):
    model = with_statistics(Stack())
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        got, wanted = frozen(model)(x), model(x)
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride()
    if torch.backends.mkldnn.is_available():
        assert sum("mkldnn" in name for name in names(frozen.graphs[0])) == 3
