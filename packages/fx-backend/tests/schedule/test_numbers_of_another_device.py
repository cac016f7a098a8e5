"""Tensors of one element on a CPU are numbers of kernels that run on another device."""

import pytest
import torch
from loop_reference import evaluate
from plans import trace
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torchsmith_fx_backend._src.codegen.triton.config import choose
from torchsmith_fx_backend._src.codegen.triton.kernel import generate
from torchsmith_fx_backend._src.schedule import schedule_graph
from torchsmith_fx_backend._src.schedule.plan import Allocate, BindSymbol, ExternCall, Launch

CALLS = {
    "product": lambda x, s: x * s,
    "root of a quotient": lambda x, s: (x / s).sqrt() + 1,
    "twice": lambda x, s: x * s - s,
    "chosen": lambda x, s: torch.where(x > s, x, 0),
}


def launch(fn, x, s):
    mode = FakeTensorMode()

    def on(device, tensor):
        return FakeTensor(mode, tensor.to("meta"), torch.device(device))

    plan = schedule_graph(trace(fn, on("cuda:0", x), on("cpu", s)), check=True)
    assert not any(isinstance(step, ExternCall) for step in plan.steps)
    return plan, [step for step in plan.steps if isinstance(step, Launch)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("call", CALLS)
def test_the_number_is_read_at_each_launch(call, dtype):
    x, s = torch.randn(5, 3).abs(), torch.tensor(3).to(dtype)
    if call == "twice" and dtype is torch.bool:
        pytest.skip("eager subtracts no bool")
    plan, (step,) = launch(CALLS[call], x, s)
    (bound,) = [step for step in plan.steps if isinstance(step, BindSymbol)]
    assert (bound.tensor, bound.what) == (plan.inputs[1], "item")
    assert step.numbers == (bound.symbol,) and plan.inputs[1] not in step.args
    out = torch.empty_like(x)
    evaluate(step.kernel, [x, out], {"number0": s.item()})
    torch.testing.assert_close(out, CALLS[call](x, s))
    source = generate(step.kernel, choose(step.kernel))
    assert [symbol.kind for symbol in source.symbols] == [
        "fp64" if dtype.is_floating_point else "i64"
    ]


def test_what_is_computed_on_the_cpu_is_stored_there():
    def counted(x, s):
        s = s.add(1).exp()
        return s, x.sum() * s, x * s

    plan, launches = launch(counted, torch.randn(5, 3), torch.tensor(2.0))
    here = {s.name for s in plan.steps if isinstance(s, Allocate) and s.layout.device.type == "cpu"}
    assert here and {plan.inputs[1], *here} == {
        name for step in launches if step.device.type == "cpu" for name in step.args
    }
    assert not here.intersection(
        name for step in launches if step.device.type == "cuda" for name in step.args
    )


def test_equal_steps_with_other_numbers_share_a_kernel():
    given = torch.randn(5), torch.tensor(2.0)
    (one,), (other,) = (launch(fn, *given)[1] for fn in (lambda x, s: x * s, lambda y, t: y * t))
    assert one.kernel == other.kernel and one.kernel.symbols == ("number0",)


def test_what_has_more_than_one_element_stays_where_it_is():
    mode = FakeTensorMode()
    x = FakeTensor(mode, torch.empty(3, device="meta"), torch.device("cuda:0"))
    y = FakeTensor(mode, torch.empty(3, device="meta"), torch.device("cpu"))
    plan = schedule_graph(trace(lambda x, y: x + y.to("cuda:0") * 2, x, y))
    assert [str(s.target) for s in plan.steps if isinstance(s, ExternCall)][:1] == [
        "aten._to_copy.default"
    ]
