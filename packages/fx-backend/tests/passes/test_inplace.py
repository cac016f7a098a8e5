"""Operators that update an input write it in place where nobody can tell, and only there."""

import pytest
import torch
from torch import fx
from torchsmith_fx_backend import smith

I = torch.tensor([2, 0])


def cache(x, new):
    x.index_copy_(0, I.to(x.device), new)
    return x.sum(0) + new[0]


def put(x, new):
    x.index_put_((torch.tensor([1, 3]),), new)
    return x * 2


def add(x, new):
    x.index_add_(0, torch.tensor([1, 1]), new)
    return x + 1


def scatter(x, new):
    x.scatter_(0, torch.tensor([[1, 0, 2], [0, 1, 3]]), new)
    return (x @ x.t(),)


def read_before(x, new):
    before = x.clone()
    x.index_copy_(0, torch.tensor([2, 0]), new)
    return before, x * 2


def from_itself(x, new):
    x.index_copy_(0, torch.tensor([2, 0]), x[:2] * 2)
    return x + new[0]


def returned(x, new):
    y = x.index_copy(0, torch.tensor([2, 0]), new)
    x.copy_(y)
    return y, x


def view_returned(x, new):
    x.index_copy_(0, torch.tensor([2, 0]), new)
    return x[1:], x.t()


def twice(x, new):
    x.index_copy_(0, torch.tensor([2, 0]), new)
    y = x.sum()
    x.index_copy_(0, torch.tensor([3, 1]), new)
    return y, x.sum()


IN_PLACE = (cache, put, add, scatter)
KEPT = (read_before, from_itself, returned, view_returned, twice)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("fn", IN_PLACE + KEPT, ids=lambda fn: fn.__name__)
def test_updates_of_inputs(fn, transposed):
    def inputs():
        torch.manual_seed(0)
        x = torch.randn(3, 4).t() if transposed else torch.randn(4, 3)
        return x, torch.randn(2, 3)

    with torch.no_grad():
        compiled = smith(fx.symbolic_trace(fn), inputs(), options={"graph_cache": False})
        mine, theirs = inputs(), inputs()
        for _ in range(3):
            got, want = compiled(*mine), fn(*theirs)
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(mine, theirs)
            assert mine[0]._version == theirs[0]._version
            if isinstance(want, tuple):
                ours, eagers = (
                    [t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for t in out]
                    for out, x in ((got, mine[0]), (want, theirs[0]))
                )
                assert ours == eagers
    copies = compiled.source.count("aten_copy_(") + compiled.source.count("aten_index_copy(")
    if fn in IN_PLACE and not transposed:
        assert copies == 0, compiled.source


def place(x, new):
    x[:, 2].copy_(new)
    return x.sum(1) + new


def part(x, new):
    x[:, 3:5].copy_(new[:, None])
    return (x[:, :5] * 2).sum(1), new + 1


def part_of_a_part(x, new):
    x[1:3, 2:8:2, :4].copy_(new[1:3, None, :4])
    return x[1] * 2


def added(x, new):
    x[:, 2].add_(new).mul_(2)
    return new + x[:, 2]


def added_once(x, new):
    x[:, 2].add_(new)
    return new * 2


def within_again(x, new):
    x[:, 2].copy_(new)
    x[1:3, 2:4, :4].copy_(x[1:3, 3:5, 4:8] + 1)
    x[1:3, 2:4, :4].mul_(2)
    return x[1:3].sum()


def filled(x, new):
    x[:, 2].fill_(1.5)
    return x.sum()


def several(x, new):
    x[:, 2].copy_(new)
    x[:, 4:6].copy_(new[:, None])
    x[0].fill_(0.0)
    return new * 2


def of_a_size(x, new):
    n = new.shape[0]
    x[:n, n].copy_(new)
    return x[:, n] + 1


def shifted(x, new):
    x[:, :-1].copy_(x[:, 1:].clone())
    x[:, -1].copy_(new)
    return new + 1


def moved(x, new):
    x[:, 2].copy_(x[:, 3] * 2 + new)
    return x.sum()


def read_old(x, new):
    before = x[:, 2] * 2
    x[:, 2].copy_(new)
    return before + x[:, 2], x[:, 2:4]


def between(x, new):
    x[:, 2].copy_(new)
    y = x.sum()
    x[:, 4].copy_(new)
    return y, x[:, 2:5] + y


def elsewhere(x, new):
    y = torch.zeros_like(x)
    y[:, 2].copy_(new)
    x.copy_(y)
    return x.sum()


LARGE = (
    place,
    part,
    part_of_a_part,
    added,
    added_once,
    within_again,
    filled,
    several,
    of_a_size,
    moved,
)
WHOLE = (added, shifted, read_old, between, elsewhere)


@pytest.mark.parametrize("fn", LARGE + WHOLE, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("rows", [64, 2])
def test_parts_of_large_inputs_are_written_alone(fn, rows):
    def inputs():
        torch.manual_seed(0)
        x, new = torch.randn(4, 32 * rows, 32), torch.randn(4, 32)
        return x.double(), new.double()

    with torch.no_grad():
        compiled = smith(fx.symbolic_trace(fn), inputs(), options={"graph_cache": False})
        mine, theirs = inputs(), inputs()
        for _ in range(3):
            torch.testing.assert_close(compiled(*mine), fn(*theirs))
            torch.testing.assert_close(mine, theirs)
            assert mine[0]._version == theirs[0]._version
    in_parts = "write_place(" in compiled.source or "write_slice(" in compiled.source
    assert in_parts == (fn in LARGE and rows == 64) or fn in WHOLE, compiled.source


@pytest.mark.parametrize("fn", [place, part, filled, several, shifted], ids=lambda fn: fn.__name__)
def test_parts_of_large_inputs_of_any_size(fn):
    compiled = torch.compile(fn, backend="smith", dynamic=True)
    with torch.no_grad():
        for rows in (4, 5, 9):
            x, new = torch.randn(rows, 2048, 32).double(), torch.randn(rows, 32).double()
            other = x.clone()
            torch.testing.assert_close(compiled(x, new), fn(other, new))
            torch.testing.assert_close(x, other)


def test_written_memory_that_another_input_shares_is_left_to_eager():
    base = torch.zeros(6, 3)
    x, y = base[:4], base[2:4]
    new = torch.ones(2, 3)

    def fn(x, y, new):
        x.index_copy_(0, torch.tensor([2, 0]), new)
        return y * 2

    with torch.no_grad():
        apart = (torch.zeros(4, 3), torch.zeros(2, 3), new)
        compiled = smith(fx.symbolic_trace(fn), apart, options={"graph_cache": False})
        assert compiled(x, y, new)[0].tolist() == [2.0] * 3


def test_counters_are_written_by_their_own_kernel():
    def fn(count, x):
        place = torch.arange(2) + count
        count.add_(2)
        return x.index_copy(0, place, x[:2] * 2)

    count, x = torch.tensor(1), torch.randn(5, 2)
    with torch.no_grad():
        compiled = smith(fx.symbolic_trace(fn), [count, x], options={"graph_cache": False})
        assert "copy_(" not in compiled.source.replace("index_copy(", "")
        want = x.index_copy(0, torch.tensor([1, 2]), x[:2] * 2)
        torch.testing.assert_close(compiled(count, x), want)
    assert (count.item(), count._version) == (3, 1)
