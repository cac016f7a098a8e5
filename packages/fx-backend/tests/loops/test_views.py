"""Views fold into index expressions; alone they are calls that alias as eager's do."""

import pytest
import torch
from plans import check, externs, kernels, run_plan, trace
from torchsmith_fx_backend._src.schedule import schedule_graph

X = torch.randn(2, 3, 4, 6)
VIEWS = {
    "view": lambda x: x.view(6, 24),
    "view_split": lambda x: x.view(2, 3, 2, 2, 3, 2),
    "reshape_merge": lambda x: x.reshape(2, 12, 6),
    "permute": lambda x: x.permute(2, 0, 3, 1),
    "transpose": lambda x: x.transpose(1, -1),
    "t": lambda x: x.view(6, 24).t(),
    "unsqueeze": lambda x: x.unsqueeze(2),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "expand": lambda x: x[:, :1].expand(2, 5, 4, 6),
    "slice": lambda x: x[:, 1:, ::2, -4:],
    "select": lambda x: x[:, -1],
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "unfold": lambda x: x.unfold(3, 3, 2),
    "unbind": lambda x: x.unbind(1)[2],
    "split": lambda x: x.split(2, 2)[1],
    "chunk": lambda x: x.chunk(3, -1)[1],
    "flatten": lambda x: x.flatten(1, 2),
    "view_of_permute": lambda x: x.permute(0, 2, 1, 3).reshape(2, 4, 18),
    "split_then_merge": lambda x: x.view(2, 3, 24).view(6, 4, 6).view(2, 3, 4, 6),
}


@pytest.mark.parametrize("name", VIEWS)
def test_folded_into_one_kernel(name):
    view = VIEWS[name]
    plan = check(lambda x: view(x) * 2 + 1, X)
    assert len(kernels(plan)) == 1 and not externs(plan)
    plan = check(lambda x: view(x * 2), X)
    assert len(kernels(plan)) >= 1
    plan = check(lambda x: view(x.exp()).exp(), X)
    assert len(kernels(plan)) <= 2


@pytest.mark.parametrize("name", VIEWS)
def test_alone_it_aliases_the_input(name):
    view = VIEWS[name]
    if name in ("view_of_permute",):
        return  # reshape copies here, in eager as well
    gm = trace(lambda x: (view(x), x + 1), X)
    got, _ = run_plan(schedule_graph(gm), [X])
    want = view(X)
    assert torch.equal(got, want) and got.stride() == want.stride()
    assert got.data_ptr() == want.data_ptr()


def test_permuted_copy_walks_the_output_contiguously():
    (kernel,) = kernels(check(lambda x: x.permute(0, 2, 1, 3).contiguous(), X))
    store = kernel.body[-1]
    assert str(store.index) == "72 * i0 + 18 * i1 + 6 * i2 + i3"
    assert [str(r) for r in kernel.ranges] == ["2", "4", "3", "6"]


def test_contiguous_chain_becomes_one_axis():
    (kernel,) = kernels(check(lambda x: (x.view(6, 24) * 2).view(2, 72) + 1, X))
    assert [str(r) for r in kernel.ranges] == ["144"]


def test_unaligned_input_view():
    base = torch.randn(40)
    check(lambda x: x.view(4, 8) * 2, base[3:35])
