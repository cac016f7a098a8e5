"""``compile(module)`` is the module for every purpose; modules as arguments and callees."""

import copy
import io
import pickle

import pytest
import torch
import torchsmith_tracer
from torch import nn


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width * 2)
        self.down = nn.Linear(width * 2, width)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, scale=1.0):
        h = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return x + self.drop(h) * scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        self.register_buffer("seen", torch.zeros(()))
        self.n = 0

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def net():
    return Net().eval()


def data():
    return torch.arange(8.0).reshape(2, 4) / 8


def test_is_the_module_for_every_purpose(net):
    compiled = torchsmith_tracer.compile(net, fullgraph=True)
    assert isinstance(compiled, Net) and compiled.__class__.__name__ == "Net"
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert torch.equal(compiled(data()), net(data()))
    assert list(compiled.parameters())[0] is next(net.parameters())
    assert repr(compiled) == repr(net)
    assert [n for n, _ in compiled.named_modules()] == [n for n, _ in net.named_modules()]


def test_attributes_are_shared_both_ways(net):
    compiled = torchsmith_tracer.compile(net)
    compiled.extra = 5
    assert net.extra == 5
    net.other = 6
    assert compiled.other == 6
    compiled.train()
    assert net.training and net.blocks[0].drop.training
    net.eval()
    assert not compiled.training
    compiled.add_module("late", nn.Identity())
    assert net.late is compiled.late


def test_pickle_and_copy_give_the_original_kind(net):
    compiled = torchsmith_tracer.compile(net)
    compiled(data())
    for made in (
        pickle.loads(pickle.dumps(compiled)),
        copy.deepcopy(compiled),
        copy.copy(compiled),
    ):
        assert type(made) is Net
        assert torch.equal(made(data()), net(data()))
    file = io.BytesIO()
    torch.save(compiled.state_dict(), file)
    file.seek(0)
    Net().load_state_dict(torch.load(file))


def test_train_and_eval_recompile(net, capture):
    compiled = torchsmith_tracer.compile(net, backend=capture)
    compiled(data())
    compiled.train()
    torch.manual_seed(1)
    got = compiled(data())
    torch.manual_seed(1)
    assert torch.equal(got, net(data()))
    compiled.eval()
    assert torch.equal(compiled(data()), net(data()))
    assert capture.n == 2


def test_state_dict_loads_into_compiled_code(net, capture):
    compiled = torchsmith_tracer.compile(net, backend=capture)
    compiled(data())
    other = Net().eval()
    compiled.load_state_dict(other.state_dict())
    assert torch.equal(compiled(data()), other(data()))
    assert capture.n == 1


def test_45_parameters_are_inputs_and_equal_modules_share_code(capture):
    compiled = torchsmith_tracer.compile(lambda m, a: m(a), backend=capture)
    layers = [nn.Linear(4, 4) for _ in range(3)]
    for m in layers:
        assert torch.equal(compiled(m, data()), m(data()))
    assert capture.n == 1
    layers[0].weight = nn.Parameter(torch.ones(4, 4))
    assert torch.equal(compiled(layers[0], data()), layers[0](data()))
    assert capture.n == 1


def test_31_tied_weights_are_one_input(capture):
    a, b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    b.weight = a.weight
    compiled = torchsmith_tracer.compile(lambda x: b(a(x)), backend=capture)
    assert torch.equal(compiled(data()), b(a(data())))
    assert len(capture.placeholders()) == 2


def test_46_attribute_changes_recompile(capture):
    class Scaled(nn.Module):
        k = 3

        def forward(self, x):
            return x * self.k

    m = Scaled()
    compiled = torchsmith_tracer.compile(m, backend=capture)
    assert torch.equal(compiled(data()), data() * 3)
    m.k = 4
    assert torch.equal(compiled(data()), data() * 4)
    assert capture.n == 2


def test_47_module_state_changes():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0
            self.register_buffer("buf", torch.zeros(2))

        def forward(self, x):
            self.n += 1
            self.buf.add_(1)
            self.last = x * 2
            return x + self.buf

    m = torchsmith_tracer.compile(Counts())
    for i in range(1, 4):
        assert torch.equal(m(torch.zeros(2)), torch.full((2,), float(i)))
    assert m.n == 3
    assert torch.equal(m.buf, torch.full((2,), 3.0))
    assert torch.equal(m.last, torch.zeros(2))


def test_48_hooks_before_and_after_compile(net):
    log = []
    net.blocks[1].register_forward_hook(lambda m, args, out: out + 1)
    net.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    compiled = torchsmith_tracer.compile(net)
    assert torch.equal(compiled(data()), net(data()))
    handle = compiled.head.register_forward_hook(lambda m, args, out: out * 3)
    assert torch.equal(compiled(data()), net(data()))
    handle.remove()
    assert torch.equal(compiled(data()), net(data()))
    assert log == []


def test_batch_norm_running_statistics(check):
    bn = nn.BatchNorm1d(4)
    check(lambda m, x: m(x), bn, data(), calls=1, graphs=1)


def test_module_containers(check):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.ReLU()})
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(2)])

        def forward(self, x):
            for name, layer in self.table.items():
                x = layer(x) + len(name)
            for w in self.weights:
                x = x * w
            return x + sum(p.sum() for p in self.parameters())

    check(Holder(), data(), graphs=1)


def test_break_inside_a_submodule(capture):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            y = self.inner(x)
            print(end="", flush=True)
            return y * 2

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Noisy() for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x) + 1
            return x

    net = Outer()
    compiled = torchsmith_tracer.compile(net, backend=capture)
    for _ in range(2):
        assert torch.allclose(compiled(data()), net(data()))
    assert not any(f.eager for f in compiled._torchsmith_region.log.frames)


def test_gradients_flow_through_the_eager_backend(net):
    compiled = torchsmith_tracer.compile(net)
    compiled(data()).sum().backward()
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(data()).sum().backward()
    assert all(torch.allclose(g, p.grad) for g, p in zip(got, net.parameters(), strict=True))


def test_64_already_compiled_module_inside(net, capture):
    inner = torchsmith_tracer.compile(net)

    def f(x):
        return inner(x) + 1

    compiled = torchsmith_tracer.compile(f, backend=capture, fullgraph=True)
    assert torch.equal(compiled(data()), net(data()) + 1)
    assert capture.n == 1


def test_methods_of_a_compiled_module(net):
    compiled = torchsmith_tracer.compile(net)
    assert torch.equal(compiled.forward(data()), net(data()))
    assert compiled.double() is compiled
    assert net.head[0].weight.dtype == torch.float64


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_hook_added_later_runs_at_each_of_several_calls(broken, everywhere):
    layer = nn.Linear(3, 3)

    def program(x):
        first = layer(x)
        if broken:
            x.sum().item()
        return layer(layer(first))

    compiled = torchsmith_tracer.compile(program, backend="eager")
    x = torch.randn(2, 3)
    assert torch.equal(compiled(x), program(x))
    ran = []
    register = nn.modules.module.register_module_forward_hook
    hook = (register if everywhere else layer.register_forward_hook)(lambda *_: ran.append(1))
    try:
        assert torch.equal(compiled(x), program(x))
    finally:
        hook.remove()
    assert len(ran) == 6
    assert torch.equal(compiled(x), program(x))
    assert len(ran) == 6


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_hooks_on_all_modules_of_traced_code_run(kind):
    layer, ran = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), []
    register = getattr(nn.modules.module, f"register_module_{kind}_hook")

    def program(x):
        before = layer(x)
        handle = register(lambda module, *_: ran.append(type(module).__name__))
        try:
            (layer(before) + layer[0](x)).sum().backward()
        finally:
            handle.remove()
        return layer(x)

    x = torch.randn(2, 3)
    seen = []
    for run in (program, compiled := torchsmith_tracer.compile(program, backend="eager"), compiled):
        ran.clear()
        run(x)
        seen.append([*ran])
    assert len(seen[0]) == 4 and seen[1:] == [seen[0]] * 2


def passes_on(call):
    def wrapper(*args, times=1, **kwargs):
        return call(*args, **kwargs) * times

    return wrapper


class Decorated(Net):
    @passes_on
    def __call__(self, x, shift=0):
        return super().__call__(x + shift)


def test_a_call_that_takes_the_module_among_any_arguments():
    module = Decorated().eval()
    compiled, x = torchsmith_tracer.compile(module, fullgraph=True), torch.randn(2, 4)
    for given, named in (((x,), {}), ((x, 1), {}), ((x,), {"times": 3, "shift": 2})):
        torch.testing.assert_close(compiled(*given, **named), module(*given, **named))
    with pytest.raises(TypeError, match=r"__call__\(\) missing 1 required positional argument"):
        compiled()
