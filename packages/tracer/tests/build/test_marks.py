"""Marks on sizes: dynamic, perhaps dynamic, static."""

import pytest
import torch
import torch._dynamo
import torchsmith_tracer as tracer
from torch._dynamo import mark_dynamic, mark_static, maybe_mark_dynamic
from torchsmith_tracer.errors import ConstraintViolationError, FullGraphError


def doubled(a):
    return a * 2, a.shape[0] + 1, a.t().contiguous()


def only_three(a):
    return a + 1 if a.shape[0] == 3 else a - 1


def unrolled(a):
    return [a + i for i in range(a.shape[0])]


def reshaped(a):
    return a.reshape(3, -1) + torch.ones(3, 4)


@pytest.mark.parametrize(
    ("mark", "sizes", "graphs"),
    [
        (mark_dynamic, (3, 8, 5, 1), 2),  # 1 is not marked
        (maybe_mark_dynamic, (3, 8, 5, 1), 2),
        (mark_static, (3, 8, 5, 3), 3),
    ],
)
def test_compiles(mark, sizes, graphs, capture):
    compiled = tracer.compile(doubled, backend=capture, fullgraph=True)
    for size in sizes:
        x = torch.arange(4.0 * size).reshape(size, 4)
        if size > 1:
            mark(x, 0)
        for got, want in zip(compiled(x), doubled(x), strict=True):
            assert repr(got) == repr(want)
    assert capture.n == graphs


@pytest.mark.parametrize(
    ("program", "line"),
    [(only_three, "if a.shape[0] == 3"), (unrolled, "range(a.shape[0])"), (reshaped, "")],
)
def test_a_violation_names_the_line(program, line):
    x = torch.ones(3, 4)
    mark_dynamic(x, 0)
    compiled = tracer.compile(program)
    for _ in range(2):
        with pytest.raises(ConstraintViolationError, match="dimension 0 of a") as raised:
            compiled(x)
        assert "test_marks.py:" in str(raised.value)
    loose = torch.ones(3, 4)
    maybe_mark_dynamic(loose, 0)
    assert repr(compiled(loose)) == repr(program(loose))
    if line:
        number = int(str(raised.value).partition("test_marks.py:")[2].partition(")")[0])
        with open(__file__) as file:
            assert line in file.readlines()[number - 1]


def test_sizes_that_are_fixed_cannot_be_marked_dynamic():
    x = torch.ones(1, 4)
    mark_dynamic(x, 0)
    with pytest.raises(ConstraintViolationError, match="its size is fixed to 1"):
        tracer.compile(doubled)(x)
    assert tracer.compile(doubled, dynamic=False)(x)[1] == 2


@pytest.mark.parametrize("mark", [mark_dynamic, maybe_mark_dynamic, mark_static])
def test_marks_are_made_outside(mark):
    def program(a):
        mark(a, 0)
        return a * 2

    with pytest.raises(FullGraphError, match="a mark on a tensor's sizes"):
        tracer.compile(program, fullgraph=True)(torch.ones(3))
    compiled = tracer.compile(program)
    for size in (3, 4):
        assert torch.equal(compiled(torch.ones(size)), torch.ones(size) * 2)
