"""Functional graphs do exactly what the program does: values, dtypes, strides, aliases, writes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
import torch.nn.functional as F
import torchsmith_guards as guards
from corpus import CASES, put, t, then, tolerance
from differential import capture, check, check_symbolic
from torch import fx
from torchsmith_fx_backend._src.aot.functionalize import functionalize
from torchsmith_fx_backend._src.capture.rules import RULES
from torchsmith_fx_backend.errors import UnsupportedError

aten = torch.ops.aten


@pytest.mark.parametrize("name", CASES)
def test_matches_eager(name):
    fn, *inputs = CASES[name]
    check(fn, *inputs, **tolerance(inputs))


@pytest.mark.parametrize("name", CASES)
def test_matches_eager_without_decompositions(name):
    fn, *inputs = CASES[name]
    check(fn, *inputs, rules={}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_symbolic_sizes_match_eager(name):
    fn, *inputs = CASES[name]
    check_symbolic(fn, *inputs, **tolerance(inputs))


def targets(fn, *inputs, rules=RULES):
    graph = functionalize(fn, inputs, rules).module.graph
    return [n.target for n in graph.nodes if n.op == "call_function"]


IN_PLACE = {
    "addcdiv_": (t(3, 4), t(3, 4) + 5), "addcmul_": (t(3, 4), t(4)), "clamp_": (t(4), t(3, 1) + 3),
    "deg2rad_": (), "hardtanh_": (-0.5, 0.5), "elu_": (0.7,), "gelu_": (), "hardsigmoid_": (),
    "hardswish_": (), "leaky_relu_": (0.1,), "lerp_": (t(3, 4), 0.3), "logit_": (0.1,),
    "masked_fill_": (t(3, 4) > 0, 2.0), "mish_": (), "pow_": (2,), "silu_": (),
    "sinc_": (), "threshold_": (0.1, 7.0), "tril_": (1,), "xlogy_": (t(3, 4).abs() + 1,),
}  # fmt: skip


def _operation(name):
    places = torch.Tensor, F, torch._C._nn, torch
    return next(getattr(place, name) for place in places if hasattr(place, name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", IN_PLACE)
def test_writes_are_decomposed_as_what_returns_the_same(name, dtype):
    rest = [a.to(dtype) if isinstance(a, torch.Tensor) else a for a in IN_PLACE[name]]
    if name == "masked_fill_":
        rest[0] = rest[0] > 0
    write = _operation(name)
    plain = aten.gelu if name == "gelu_" else _operation(name[:-1])
    x = t(3, 4).to(dtype)
    assert targets(lambda a: plain(a * 2, *rest), x) == targets(lambda a: write(a * 2, *rest), x)

    def parts(base):
        whole = base * 1
        write(whole[1:, 1:5], *rest)
        write(base.t()[1:4], *rest)
        return whole, base + whole

    check(parts, t(4, 6).to(dtype), rtol=1e-5 if dtype is torch.float32 else 2e-2, atol=5e-3)


def test_matrix_products_and_attention_stay_whole():
    assert targets(F.linear, t(2, 4), t(5, 4), t(5)) == [aten.linear.default]
    assert targets(lambda a, b: a @ b, t(2, 3, 4), t(4, 5)) == [aten.matmul.default]
    sdpa = targets(lambda q: F.scaled_dot_product_attention(q, q, q), t(1, 2, 5, 8))
    assert sdpa == [aten.scaled_dot_product_attention.default]
    assert targets(F.conv2d, t(1, 3, 8, 8), t(4, 3, 3, 3)) == [aten.convolution.default]


def test_norms_become_sums_and_pointwise_operators():
    found = set(targets(lambda a: F.softmax(F.layer_norm(a, (8,)), -1), t(3, 8)))
    assert found <= {
        getattr(aten, name).default if "." not in name else eval(f"aten.{name}")
        for name in ("sum.dim_IntList", "div.Tensor", "sub.Tensor", "mul.Tensor", "add.Tensor")
    } | {aten.rsqrt.default, aten.amax.default, aten.exp.default}


def test_dropout_in_eval_vanishes():
    assert targets(lambda a: F.dropout(a, 0.3, False) + 1, t(3)) == [aten.add.Tensor]


def test_written_input_is_copied_back_once():
    found = targets(lambda a: then(a.add_(1), a.mul_(2), None), t(3))
    assert found == [aten.add.Tensor, aten.mul.Tensor, aten.copy_.default]


def test_unwritten_inputs_are_not_copied():
    assert aten.copy_.default not in targets(lambda a: put(a.clone(), 0, 1.0), t(3))


def test_positions_of_written_and_literal_inputs():
    graph = functionalize(lambda a, n, b: then(b.add_(n), a + n), [t(3), 2, t(3)], RULES)
    assert graph.mutated == (2,)
    assert graph.frozen == ((1, 2),)


def traced(fn):
    return fx.symbolic_trace(fn)


def test_graph_modules_with_methods_modules_and_attributes():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU())
            self.register_buffer("scale", torch.tensor([2.0]))

        def forward(self, x):
            return self.inner(x).mul(self.scale).unsqueeze(0)

    net, x = Net().eval(), t(3, 4)
    graph = functionalize(traced(net), [x], RULES)
    names = {n.target for n in graph.module.graph.nodes if n.op == "get_attr"}
    assert names == {"inner.0.weight", "inner.0.bias", "scale"}
    assert graph.module.get_parameter("inner.0.weight") is net.inner[0].weight
    with torch.no_grad():
        torch.testing.assert_close(fx.Interpreter(graph.module).run(x)[0], net(x))


def test_written_attribute_is_copied_back():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return x + self.count

    net, x = Counter(), t(3)
    graph = functionalize(traced(net), [x], RULES)
    (result,) = fx.Interpreter(graph.module).run(x)
    assert float(net.count) == 1 and torch.equal(result, x + 1)


def test_fake_inputs_and_their_mode_are_used():
    mode = guards.FakeMode()
    fake = mode.fakeify(t(3, 4))
    graph = functionalize(lambda a: a + 1, [fake], RULES)
    placeholder = next(iter(graph.module.graph.nodes))
    assert placeholder.meta["val"].fake_mode is mode.mode
    assert tuple(fake.shape) == (3, 4)


def test_source_positions_are_inherited():
    gm = traced(lambda a: a.sin())
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = "model.py:7"
    graph = functionalize(gm, [t(3)], RULES)
    (sin,) = (n for n in graph.module.graph.nodes if n.op == "call_function")
    assert sin.meta["stack_trace"] == "model.py:7" and sin.meta["from_node"] == "sin"


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda a: a.t_(), "changes its sizes"),
        (lambda a: a.unfold(0, 2, 2).add_(1), "unfold"),
        (lambda a: a.unfold(0, 2, 1).add_(1), "overlaps itself"),
        (lambda a: a[:1].expand(3, 4).add_(1), "overlaps itself"),
        (lambda a: a[a > 0], "tensor contents"),
        (lambda a: a * a.sum().item(), "tensor contents"),
    ],
)
def test_what_has_no_functional_form_is_said(fn, what):
    with pytest.raises(UnsupportedError, match=what):
        functionalize(fn, [t(4, 4)], RULES)


def test_eager_errors_come_through():
    with pytest.raises(RuntimeError, match="cast|in-place"):
        functionalize(lambda a: a.add_(1.5), [t(3, dtype=torch.int64)], RULES)
    with pytest.raises(RuntimeError, match="broadcast|must match"):
        functionalize(lambda a, b: a.add_(b), [t(3), t(2, 3)], RULES)


def test_grad_mode_set_inside_does_not_leak():
    gm = traced(lambda a: a + 1)
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    with gm.graph.inserting_before(node):
        gm.graph.call_function(torch._C._set_grad_enabled, (False,))
    functionalize(gm, [t(3)], RULES)
    assert torch.is_grad_enabled()


def test_random_operators_keep_their_stream():
    def fn(a):
        return a + torch.rand(3), F.dropout(a, 0.5, True), torch.empty(3).normal_()

    graph = check(fn, t(3), seeded=True)
    assert graph.static


def test_metadata_is_cheap_for_common_operators(monkeypatch):
    from torchsmith_fx_backend._src.aot import functional

    asked = []
    original = functional.FunctionalMode.evaluate

    def spy(self, func, args, kwargs):
        if functional.layout_of(func, args, kwargs) is None:
            asked.append(func)
        return original(self, func, args, kwargs)

    monkeypatch.setattr(functional.FunctionalMode, "evaluate", spy)
    block = lambda a, w: F.gelu(F.layer_norm(F.linear(a, w), (8,))).view(-1, 2, 4).transpose(0, 1)
    capture(block, [t(3, 8), t(8, 8)])
    assert asked == []


@pytest.mark.parametrize("exponent", [2, -0.5, 0.5, -1.0, 3, True, 1.5])
def test_in_place_power_has_a_number_as_its_exponent(exponent):
    check(lambda a: a.pow_(exponent), torch.rand(4) + 0.5, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("base", [2, 0.5, -1.0])
def test_power_of_a_number(base):
    check(lambda a: base**a, torch.tensor([0.0, 1.0, 2.0, -3.0]), rtol=1e-5, atol=1e-5)


def test_a_float_minus_unsigned_numbers():
    check(lambda a: 1.5 - a, torch.tensor([0, 1, 200], dtype=torch.uint8))


@pytest.mark.parametrize("name", ["masked_fill_", "add_", "copy_", "masked_scatter_", "lerp_"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_write_of_a_size_that_is_equal_for_a_reason(name, whole):
    """The sizes are equal at the call, where one is another symbol less one."""
    more = {"masked_fill_": (1.0,), "masked_scatter_": (torch.ones(9),), "lerp_": (0.5,)}

    def fn(x, other):
        here = x.clone()
        part = other[1:, 1:]
        if name.startswith("masked"):
            part = part > 0
        getattr(here if whole else here[:], name)(part, *more.get(name, ()))
        return here * 2

    check_symbolic(fn, torch.randn(3, 3), torch.randn(4, 4), rtol=1e-5, atol=1e-5)
