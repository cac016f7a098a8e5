"""Calls that replace elements of a value that nothing else reads write into it, as eager does."""

import pytest
import torch
from plans import check, run_plan, trace
from torchsmith_fx_backend._src.passes.base import IN_PLACE
from torchsmith_fx_backend._src.runtime.support import write_slice
from torchsmith_fx_backend._src.schedule import schedule_graph, scheduler
from torchsmith_fx_backend._src.schedule.plan import ExternCall

Z = torch.randn(4, 6, dtype=torch.complex64)
ROWS = torch.tensor([2, 0])


def written(plan):
    targets = [s.target for s in plan.steps if isinstance(s, ExternCall)]
    return [t for t in targets if t is write_slice or t in IN_PLACE.values()]


def sliced(x, y):
    z = x @ x.t()
    z[1:3] = y[:2, :4]
    return z


def strided(x, y):
    z = x @ x.t()
    z[:, ::2] = y[:, :2]
    return z @ z


def put(x, y):
    z = x @ x.t()
    z[ROWS] = y[:2, :4]
    return z


def added(x, y):
    z = x @ x.t()
    z.index_add_(0, ROWS, y[:2, :4])
    return z


@pytest.mark.parametrize("fn", [sliced, strided, put, added])
def test_what_nothing_else_reads_is_written(fn):
    assert len(written(check(fn, Z, Z * 2))) == 1


def read_later(x, y):
    z = x @ x.t()
    w = torch.slice_scatter(z, y[:2, :4], 0, 1, 3)
    return w @ z


def view_read_later(x, y):
    z = x @ x.t()
    row = z[0]
    w = torch.slice_scatter(z, y[:2, :4], 0, 0, 2)
    return w @ row


def returned(x, y):
    z = x @ x.t()
    return torch.slice_scatter(z, y[:2, :4], 0, 1, 3), z


def given(x, y):
    return torch.slice_scatter(x, y[:2], 0, 1, 3) @ y.t()


def own_rows(x, y):
    z = x @ x.t()
    return torch.slice_scatter(z, z[:3], 0, 1, 4)


def own_indexed(x, y):
    z = x @ x.t()
    return z.index_add(0, ROWS, z[:2])


def of_a_view(x, y):
    z = x @ x.t()
    return torch.slice_scatter(z[:3], y[:2, :4], 0, 1, 3)


@pytest.mark.parametrize(
    "fn", [read_later, view_read_later, returned, given, own_rows, own_indexed, of_a_view]
)
def test_what_is_read_elsewhere_is_copied(fn):
    x, y = Z.clone(), Z * 2
    assert not written(check(fn, x, y))
    assert torch.equal(x, Z)


def test_one_after_the_other_in_one_memory():
    def fn(x, y):
        z = x @ x.t()
        z[1:3] = y[:2, :4]
        z[:, 0] = 1j
        z[0:1] = z[3:4] * 2
        return z @ z

    plan = check(fn, Z, Z * 2)
    assert written(plan)
    again = schedule_graph(trace(fn, Z, Z * 2), policies=[scheduler.Policy(reuse=False)])
    assert not written(again)
    torch.testing.assert_close(run_plan(again, [Z, Z * 2])[0], fn(Z, Z * 2))
