"""make_fx: what is recorded, what is refused, and that recorded graphs compute what ran."""

import operator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx
from torchsmith_fx_backend import make_fx
from torchsmith_fx_backend._src.capture.mode import disable_tracing
from torchsmith_fx_backend.errors import DataDependentError, TracingModeError
from torchsmith_guards.errors import DataDependentError as GuardOnData

aten = torch.ops.aten
MODES = ("real", "fake", "symbolic")


def x34():
    torch.manual_seed(0)
    return torch.randn(3, 4)


def calls(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def nodes(module, target):
    return [n for n in module.graph.nodes if n.target is target]


@pytest.mark.parametrize("mode", MODES)
def test_records_primitive_operators(mode):
    module = make_fx(lambda a: a.sin() + 1, tracing_mode=mode)(x34())
    ops = [(n.op, n.target) for n in module.graph.nodes]
    assert [op for op, _ in ops] == ["placeholder", "call_function", "call_function", "output"]
    assert calls(module) == [aten.sin.default, aten.add.Tensor]
    assert nodes(module, aten.add.Tensor)[0].args[1] == 1
    for x in (x34(), torch.randn(7)):
        assert torch.equal(module(x), x.sin() + 1)


def test_wrong_mode_and_keywords():
    with pytest.raises(AssertionError, match="'real', 'fake', 'symbolic'"):
        make_fx(lambda a: a, tracing_mode="foo")
    with pytest.raises(TracingModeError):
        make_fx(lambda a: a, tracing_mode="Real")
    with pytest.raises(TypeError):
        make_fx(lambda a: a)(a=x34())


def test_keeps_the_name():
    def attention(a):
        return a

    assert make_fx(attention).__name__ == "attention"


def test_containers_in_and_out():
    module = make_fx(lambda d: {"r": d["a"] + d["b"][0]})({"a": x34(), "b": [torch.ones(4)]})
    result = module({"a": x34(), "b": [torch.ones(4)]})
    assert set(result) == {"r"}
    assert torch.equal(result["r"], x34() + 1)


@pytest.mark.parametrize("mode", MODES)
def test_tuple_and_list_results(mode):
    pair = make_fx(lambda a: (a + 1, a), tracing_mode=mode)(x34())(x34())
    assert isinstance(pair, tuple) and torch.equal(pair[0], x34() + 1)
    single = make_fx(lambda a: [a * 2], tracing_mode=mode)(x34())(x34())
    assert isinstance(single, list) and torch.equal(single[0], x34() * 2)
    nested = make_fx(lambda a: (a, [a + 1, {"k": a}]), tracing_mode=mode)(x34())(x34())
    assert torch.equal(nested[1][0], x34() + 1) and set(nested[1][1]) == {"k"}


def test_variable_positional_arguments():
    module = make_fx(lambda *a: a[0] + a[1])(x34(), torch.ones(4))
    assert [n.target for n in module.graph.nodes if n.op == "placeholder"] == ["arg0_1", "arg1_1"]
    assert torch.equal(module(x34(), torch.ones(4)), x34() + 1)


def test_same_tensor_twice_collapses_to_the_later_input():
    x = x34()
    module = make_fx(lambda a, b: a + b)(x, x)
    add = nodes(module, aten.add.Tensor)[0]
    assert add.args[0] is add.args[1]
    assert add.args[0].target == "b_1"


def test_closure_tensor_becomes_an_attribute():
    y = torch.randn(4)
    module = make_fx(lambda a: a + y)(x34())
    assert module._tensor_constant0 is y
    assert torch.equal(module(x34()), x34() + y)


def test_closure_module_keeps_its_parameters():
    linear = torch.nn.Linear(4, 5)
    module = make_fx(lambda a: linear(a))(x34())
    found = [n.target for n in module.graph.nodes if n.op == "get_attr"]
    assert sorted(found) == ["_param_constant0", "_param_constant1"]
    kept = {id(module._param_constant0), id(module._param_constant1)}
    assert kept == {id(linear.weight), id(linear.bias)}
    assert torch.allclose(module(x34()), linear(x34()))
    linear.weight.data.mul_(2)
    assert torch.allclose(module(x34()), linear(x34()))


def test_module_parameters_keep_their_names():
    linear = torch.nn.Linear(4, 5)
    module = make_fx(linear)(x34())
    assert sorted(n.target for n in module.graph.nodes if n.op == "get_attr") == ["bias", "weight"]
    assert module.weight is linear.weight
    assert type(module).__name__ == "Linear"


def test_real_tensor_in_fake_trace():
    y = torch.randn(4)
    with pytest.raises(AssertionError, match="aten.add.Tensor"):
        make_fx(lambda a: a + y, tracing_mode="fake")(x34())
    module = make_fx(lambda a: a + y, tracing_mode="fake", _allow_non_fake_inputs=True)(x34())
    assert torch.equal(module(x34()), x34() + y)


def test_reading_a_value_is_refused_on_real_tensors():
    with pytest.raises(RuntimeError) as caught:
        make_fx(lambda a: a * a.sum().item())(x34())
    assert isinstance(caught.value, DataDependentError)
    assert "_local_scalar_dense" in str(caught.value) and "symbolic" in str(caught.value)


def test_reading_a_value_symbolically():
    module = make_fx(lambda a: a * a.sum().item(), tracing_mode="symbolic")(x34())
    read = nodes(module, aten._local_scalar_dense.default)[0]
    assert nodes(module, aten.mul.Tensor)[0].args[1] is read
    new = torch.ones(3, 4)
    assert torch.equal(module(new), new * 12)


def test_refusal_can_be_switched_off():
    module = make_fx(lambda a: a * a.sum().item(), _error_on_data_dependent_ops=False)(
        torch.ones(2)
    )
    assert torch.equal(module(torch.ones(2) * 5), torch.ones(2) * 10)


def test_branch_on_data_and_branch_on_size():
    with pytest.raises(GuardOnData):
        make_fx(lambda a: a if a.sum() > 0 else -a, tracing_mode="symbolic")(x34())
    module = make_fx(lambda a: a + 1 if a.shape[0] > 2 else a, tracing_mode="symbolic")(x34())
    (guard,) = module.shape_env.guards
    assert "3 <= " in str(guard), "a comparison"
    assert torch.equal(module(torch.ones(5, 2)), torch.full((5, 2), 2.0))


def test_literal_is_not_corrupted():
    module = make_fx(lambda a: a * torch.tensor(3.0).add_(2))(x34())
    assert aten.lift_fresh_copy.default in calls(module)
    for _ in range(2):
        assert torch.equal(module(x34()), x34() * 5)


def test_small_literals_fold():
    fn = lambda a: a * (torch.tensor(3.0) + torch.tensor(4.0)).item()
    module = make_fx(fn)(x34())
    assert nodes(module, aten.mul.Tensor)[0].args[1] == 7.0
    in_place = make_fx(lambda a: a * torch.tensor(3.0).add_(2).item())(x34())
    assert nodes(in_place, aten.mul.Tensor)[0].args[1] == 5.0


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: a * torch.tensor([1.0, 2.0]).sum().item(),
        lambda a: a * torch.arange(3).sum().item(),
    ],
)
def test_larger_literals_and_factories_do_not_fold(fn):
    with pytest.raises(DataDependentError, match=r"_local_scalar_dense(.|\n)*symbolic"):
        make_fx(fn)(x34())


def test_size_arithmetic_is_recorded_once():
    module = make_fx(lambda a: a.view(a.shape[0] * a.shape[1]), tracing_mode="symbolic")(x34())
    assert calls(module) == [aten.sym_size.int, aten.sym_size.int, operator.mul, aten.view.default]
    assert module(torch.randn(5, 6)).shape == (30,)


def test_unused_and_free_size_arithmetic_leaves_nothing():
    def unused(a):
        a.shape[0] + 5
        return a + 1

    assert calls(make_fx(unused, tracing_mode="symbolic")(x34())) == [aten.add.Tensor]
    free = make_fx(lambda a: a.new_empty(a.shape[0] * 1), tracing_mode="symbolic")(x34())
    assert calls(free) == [aten.sym_size.int, aten.new_empty.default]


def test_symbolic_graph_is_size_generic():
    fn = lambda a: a.expand(a.shape[0], 3) + 0
    module = make_fx(fn, tracing_mode="symbolic")(torch.randn(4, 1))
    assert module(torch.randn(6, 1)).shape == (6, 3)
    for columns in (2, 4):
        with pytest.raises(RuntimeError, match="must match the existing size"):
            module(torch.randn(6, columns))
    assert module(torch.randn(9, 3)).shape == (9, 3)


def test_size_one_is_specialised():
    module = make_fx(lambda a: a.reshape(a.shape[0], a.shape[1]), tracing_mode="symbolic")(
        torch.randn(1, 4)
    )
    value = next(iter(module.graph.nodes)).meta["val"]
    assert value.shape[0] == 1 and type(value.shape[0]) is int
    assert isinstance(value.shape[1], torch.SymInt)
    (reshape,) = nodes(module, aten.view.default)
    assert reshape.args[1][0] == 1 and reshape.args[1][1].target is aten.sym_size.int
    assert "[1, sym_size" in module.code
    assert module(torch.randn(1, 7)).shape == (1, 7)


def test_symbolic_number_as_output_and_input():
    assert (
        make_fx(lambda a: a.shape[0] + 2, tracing_mode="symbolic")(x34())(torch.randn(9, 4)) == 11
    )
    assert make_fx(lambda a: a.shape[0] + 2)(x34())(torch.randn(9, 4)) == 5
    module = make_fx(lambda a, n: a * n, tracing_mode="symbolic")(x34(), 5)
    assert torch.equal(module(x34(), 7), x34() * 7)


def test_size_from_data_is_bound():
    module = make_fx(lambda a: a.nonzero(), tracing_mode="symbolic")(x34())
    bindings = nodes(module, aten.nonzero.default)[0].meta["unbacked_bindings"]
    assert list(bindings.values()) == [("size", 0)]


@pytest.mark.parametrize("mode", MODES)
def test_every_node_has_its_value(mode):
    fn = lambda a: torch.softmax(a @ a.t(), -1).sum(0)
    module = make_fx(fn, tracing_mode=mode)(x34())
    seen = []

    class Compared(torch.fx.Interpreter):
        def run_node(self, node):
            result = super().run_node(node)
            if node.op in ("placeholder", "call_function"):
                seen.append(node.target)
                value = node.meta["val"]
                if isinstance(result, torch.Tensor):
                    assert tuple(int(n) for n in value.shape) == tuple(result.shape)
                    assert tuple(int(n) for n in value.stride()) == result.stride()
                    assert (value.dtype, value.device) == (result.dtype, result.device)
                else:
                    assert int(value) == result
            return result

    assert torch.allclose(Compared(module).run(x34()), fn(x34()))
    assert len(seen) > 4


def test_value_is_a_snapshot():
    def fn(a):
        b = a + 1
        b.t_()
        return b

    module = make_fx(fn, tracing_mode="fake")(x34())
    assert tuple(nodes(module, aten.add.Tensor)[0].meta["val"].shape) == (3, 4)
    assert tuple(nodes(module, aten.t_.default)[0].meta["val"].shape) == (4, 3)


def test_decomposition_table():
    def addmm(bias, a, b, *, beta=1, alpha=1):
        return a @ b * alpha + bias * beta

    linear = torch.nn.Linear(4, 5)
    table = {aten.addmm.default: addmm}
    module = make_fx(lambda a: linear(a), decomposition_table=table)(x34())
    assert aten.addmm.default not in calls(module) and aten.mm.default in calls(module)
    assert torch.allclose(module(x34()), linear(x34()), atol=1e-6)
    assert set(table) == {aten.addmm.default}


def test_rule_may_decline():
    module = make_fx(
        lambda a: a.sin(), decomposition_table={aten.sin.default: lambda a: NotImplemented}
    )(x34())
    assert calls(module) == [aten.sin.default]


@pytest.mark.parametrize("mode", MODES)
def test_composites_are_split(mode):
    module = make_fx(lambda a: a @ a.transpose(1, 2), tracing_mode=mode)(torch.randn(2, 3, 4))
    assert aten.bmm.default in calls(module) and aten.matmul.default not in calls(module)
    with torch.inference_mode():
        inside = make_fx(lambda a: a @ a.transpose(1, 2), tracing_mode=mode)(torch.randn(2, 3, 4))
    assert aten.bmm.default in calls(inside) and aten.matmul.default not in calls(inside)


def test_autocast_shows_as_casts():
    def fn(a):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return a @ a.t(), a @ a.t()

    module = make_fx(fn)(x34())
    assert calls(module).count(aten._to_copy.default) == 4
    assert module(x34())[0].dtype is torch.bfloat16


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_recorded(mode):
    def fn(a):
        a = a.detach().requires_grad_()
        (grad,) = torch.autograd.grad((a.sin() * a.exp()).sum(), a)
        return grad

    module = make_fx(fn, tracing_mode=mode)(x34())
    assert aten.cos.default in calls(module)
    assert torch.allclose(module(x34()), x34().cos() * x34().exp() + x34().sin() * x34().exp())


def test_gradient_of_input():
    x = x34().requires_grad_()
    module = make_fx(lambda a: torch.autograd.grad(a.tanh().sum(), a)[0])(x)
    new = torch.randn(3, 4).requires_grad_()
    assert torch.allclose(module(new), torch.autograd.grad(new.tanh().sum(), new)[0])


def test_nested_trace_does_not_leak():
    inner, example = [], torch.randn(2)

    def fn(a):
        inner.append(make_fx(lambda b: b.cos())(example))
        return a.sin()

    outer = make_fx(fn)(x34())
    assert calls(outer) == [aten.sin.default]
    assert calls(inner[0]) == [aten.cos.default]
    again = make_fx(lambda a: inner[0](a))(x34())
    assert calls(again) == [aten.cos.default]


def test_disabled_tracing_bakes_a_constant():
    def fn(a):
        with disable_tracing():
            s = torch.ones(4).sin()
        return a + s

    module = make_fx(fn)(x34())
    assert calls(module) == [aten.add.Tensor]
    assert torch.equal(module._tensor_constant0, torch.ones(4).sin())
    assert torch.equal(module(x34()), x34() + torch.ones(4).sin())


def test_random_operators_stay_calls():
    module = make_fx(lambda a: a + torch.rand(4))(x34())
    assert calls(module) == [aten.rand.default, aten.add.Tensor]
    x = x34()
    assert not torch.equal(module(x), module(x))


def test_in_place_relabels():
    def fn(a):
        b = a + 1
        b.mul_(2)
        return b + 0

    module = make_fx(fn)(x34())
    write, last = nodes(module, aten.mul_.Tensor)[0], nodes(module, aten.add.Tensor)[-1]
    assert last.args[0] is write
    assert torch.equal(module(x34()), (x34() + 1) * 2)


def test_multi_output_and_foreach():
    module = make_fx(lambda a: a.split(2, 1)[1])(x34())
    assert torch.equal(module(x34()), x34()[:, 2:])

    def fn(a, b):
        torch._foreach_add_([a, b], 1)
        return a, b

    module = make_fx(fn)(x34(), torch.zeros(2))
    y = torch.zeros(2)
    assert torch.equal(module(x34(), y)[1], torch.ones(2)) and torch.equal(y, torch.ones(2))


def test_global_state_is_restored():
    grad, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    with pytest.raises(ZeroDivisionError):
        make_fx(lambda a: a + 1 // 0)(x34())
    assert torch.is_grad_enabled() is grad and torch.is_autocast_cache_enabled() is cache
    assert len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()) == 0


def test_module_prints_and_runs_after_deepcopy():
    import copy

    module = make_fx(lambda a: a.sin())(x34())
    assert "torch.ops.aten.sin.default" in module.code
    assert torch.equal(copy.deepcopy(module)(x34()), x34().sin())


PEER_CASES = {
    "factories": lambda a: torch.ones(4) * a + torch.arange(4.0).detach().sin() + torch.zeros(3, 4),
    "factories like": lambda a: (
        torch.ones_like(a).detach() + a.new_zeros(4) + torch.full((4,), 2.0)
    ),
    "mlp": lambda a: torch.nn.functional.gelu(a @ a.t()).softmax(-1),
    "norm": lambda a: torch.nn.functional.layer_norm(a, (4,)),
    "views": lambda a: a.view(-1)[1:].unsqueeze(0).expand(2, -1).transpose(0, 1),
    "writes": lambda a: a.clone().mul_(2).relu_().view(4, 3).add_(1),
    "index": lambda a: a[torch.tensor([0, 2])],
    "where": lambda a: torch.where(a > 0, a, -a).max(1)[0],
    "einsum": lambda a: torch.einsum("ij,kj->ik", a, a),
    "std": lambda a: (a - a.mean()) / a.std(),
}


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("name", PEER_CASES)
def test_records_the_operators_that_torch_records(name, mode):
    fn = PEER_CASES[name]
    ours, theirs = (
        make_fx(fn, tracing_mode=mode)(x34()),
        torch_make_fx(fn, tracing_mode=mode)(x34()),
    )

    def relevant(module):
        return [t for t in calls(module) if t is not operator.getitem]

    assert relevant(ours) == relevant(theirs)
    assert torch.equal(ours(x34()), fn(x34()))
