"""Marks on sizes: dynamic, perhaps dynamic, static, unbacked; torch's functions and ours."""

import pytest
import torch
import torch._dynamo
import torchsmith_tracer as tracer
from torch._dynamo import mark_dynamic, mark_static, maybe_mark_dynamic
from torch._dynamo.decorators import mark_unbacked
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
        (mark_unbacked, (3, 8, 1, 0), 1),
        (mark_unbacked, (0, 1, 5), 1),
        (tracer.mark_dynamic, (3, 8, 5, 1), 2),
        (tracer.maybe_mark_dynamic, (3, 8, 5, 1), 2),
        (tracer.mark_static, (3, 8, 5, 3), 3),
        (tracer.mark_unbacked, (1, 0, 7), 1),
    ],
)
def test_compiles(mark, sizes, graphs, capture):
    compiled = tracer.compile(doubled, backend=capture, fullgraph=True)
    for size in sizes:
        x = torch.arange(4.0 * size).reshape(size, 4)
        if size > 1 or "unbacked" in mark.__name__:
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


OUTSIDE = [mark_dynamic, maybe_mark_dynamic, mark_unbacked]
OUTSIDE += [tracer.mark_dynamic, tracer.maybe_mark_dynamic, tracer.mark_unbacked]


@pytest.mark.parametrize("mark", OUTSIDE)
def test_marks_are_made_outside(mark):
    def program(a):
        mark(a, 0)
        return a * 2

    with pytest.raises(FullGraphError, match="a mark on a tensor's sizes"):
        tracer.compile(program, fullgraph=True)(torch.ones(3))
    compiled = tracer.compile(program)
    for size in (3, 4):
        assert torch.equal(compiled(torch.ones(size)), torch.ones(size) * 2)


@pytest.mark.parametrize("mark", [mark_static, tracer.mark_static])
@pytest.mark.parametrize(("dims", "graphs"), [((0,), 3), ((1,), 1), (([0, 1],), 3), ((), 3)])
def test_static_marks_within_the_program_specialise(mark, dims, graphs, capture):
    def program(a):
        mark(a, *dims)
        return a * 2

    compiled = tracer.compile(program, backend=capture, fullgraph=True, dynamic=True)
    for size in (3, 4, 5, 3):
        x = torch.ones(size, 7)
        assert torch.equal(compiled(x), x * 2)
    assert capture.n == graphs


@pytest.mark.parametrize("mark", [mark_dynamic, tracer.mark_dynamic])
def test_ranges_are_guarded_and_strict(mark, capture):
    def program(a):
        return a + 1 if a.shape[0] <= 20 else a - 1

    compiled = tracer.compile(program, backend=capture, fullgraph=True)
    x = torch.ones(3, 4)
    mark(x, 0, min=2, max=10)
    assert torch.equal(compiled(x), x + 1)
    assert "20" not in compiled._torchsmith_region.log.frames[0].guards  # follows from the range
    for size, graphs in ((10, 1), (11, 2), (25, 3)):
        y = torch.ones(size, 4)
        assert torch.equal(compiled(y), program(y)) and capture.n == graphs
    for size in (12, 40):
        z = torch.ones(size, 3)
        mark(z, 0, min=2, max=10)
        with pytest.raises(ConstraintViolationError, match=f"from 2 to 10, but its size is {size}"):
            tracer.compile(program)(z)


def branches(a):
    return a + 1 if a.shape[0] > 2 else a - 1


def sliced(a):
    return torch.cat([a, torch.ones(1, 2)])[1:].reshape(-1), a.shape[0] * 2


def reduced(a):
    return a.sum(0), (a + a.sum(0)) @ torch.ones(2, 3), torch.nn.functional.layer_norm(a, (2,))


def chunked(a):
    return [part + 1 for part in a.split(2)]


@pytest.mark.parametrize(
    ("program", "graphs"), [(branches, 3), (sliced, 1), (reduced, 1), (chunked, 4)]
)
def test_nothing_is_assumed_of_unbacked_sizes(program, graphs, capture):
    compiled = tracer.compile(program, backend=capture)
    for size in (3, 1, 0, 4):
        x = torch.arange(2.0 * size).reshape(size, 2)
        tracer.mark_unbacked(x, 0)
        assert repr(compiled(x)) == repr(program(x))
    assert capture.n == graphs


def test_marks_on_what_is_no_tensor_or_dimension():
    x = torch.ones(3)
    for mark in (tracer.mark_dynamic, tracer.maybe_mark_dynamic, tracer.mark_unbacked):
        with pytest.raises(IndexError, match="dimension 1 of a tensor with 1"):
            mark(x, 1)
        with pytest.raises(TypeError, match="not of list"):
            mark([x], 0)
