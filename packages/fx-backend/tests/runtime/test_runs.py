"""Steps that follow each other in one call: what a wrapper says, and that it computes the same."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torchsmith_fx_backend import Settings, compile_graph, make_fx
from torchsmith_fx_backend._src.aot.functionalize import functionalize
from torchsmith_fx_backend._src.capture.rules import RULES
from torchsmith_fx_backend._src.codegen.runs import FEW
from torchsmith_fx_backend._src.codegen.wrapper import print_wrapper
from torchsmith_fx_backend._src.schedule import schedule_graph
from torchsmith_fx_backend._src.schedule.plan import Launch

STRICT = Settings(graph_cache=False, verify=True, strict=True)
PARTS = 10


def step(*given):
    for x, y in zip(given[:PARTS], given[PARTS:]):
        y.mul_(0.5).add_(x)
        x.sub_(y.exp())
    return ()


def chain(*given):
    """The same kernel on what it gave before."""
    x = given[0]
    for _ in range(6):
        x = x.sum(0, keepdim=True) + x.t()
    return (x,)


def into_one(*given):
    """Equal launches that write into one tensor, or read what another one writes."""
    for x in given[1:PARTS]:
        given[0].add_(x.sum())
    return [given[0] * 2]


@pytest.mark.parametrize("fn", [step, chain, into_one])
def test_equal_launches(fn):
    torch.manual_seed(0)
    given = [torch.randn(3, 3) for _ in range(2 * PARTS)]
    theirs, mine = ([x.clone() for x in given] for _ in range(2))
    compiled = compile_graph(make_fx(fn)(*given), given, STRICT)
    torch.testing.assert_close(list(compiled(*mine)), list(fn(*theirs)))
    torch.testing.assert_close(mine, theirs)
    assert ("_each(" in compiled.source) is (fn is step)


def wrapper(parts):
    mode = FakeTensorMode()

    def on(device, *size):
        return FakeTensor(mode, torch.empty(size, device="meta"), torch.device(device))

    def fn(*given):
        for x, s in zip(given[:parts], given[parts:]):
            s.add_(1)
            x.mul_(1 - 0.9**s)
        return ()

    given = [on("cuda:0", 5) for _ in range(parts)] + [on("cpu") for _ in range(parts)]
    plan = schedule_graph(functionalize(fn, given, RULES).module)
    launches = [s for s in plan.steps if isinstance(s, Launch)]
    kernels = list(dict.fromkeys(s.kernel for s in launches))
    return print_wrapper(plan, [f"kernel_{kernels.index(s.kernel)}" for s in launches]).text


def test_numbers_of_all_parts_are_read_at_once():
    text = wrapper(FEW["cuda"])
    assert text.count("empty(") == 1 and "empty_strided" not in text
    assert text.count(".tolist()") == 1 and ".item()" not in text
    assert text.count("_each(") == 3


def test_a_few_launches_on_a_gpu_are_cheaper_than_a_table():
    text = wrapper(FEW["cuda"] - 1)
    assert text.count("_each(") == 2  # those on the CPU
