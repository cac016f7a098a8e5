"""Small programs, one per mechanism that once went wrong: results and inputs are eager's."""

import pytest
import torch
import torch.nn.functional as F
import torchsmith_guards as guards
from torch import fx
from torchsmith_fx_backend import Settings, compile_graph
from torchsmith_fx_backend.errors import UnsupportedError

SETTINGS = Settings(graph_cache=False, verify=True)


def written_low_precision(x, y):
    y.masked_fill_(y > 0, 3)
    return x + 1


def written_by_a_reduction(x, y):
    total = x.prod(0)
    y.mul_(total)
    return total


def written_and_then_reduced(x):
    torch.add(x, x, out=x)
    return x[torch.tensor([4, 1]), torch.tensor([-1, 3])], x.softmax(-3)


def written_before_its_start(x):
    x[-9:].add_(1)
    return x * 2


def scattered_into_a_diagonal(x):
    along = x.diagonal(1, 0, 1)
    row = along.select(-2, -1)
    along.mul_(along)
    torch.maximum(row, row, out=row)
    return row + 1


half = torch.bfloat16
CASES = {
    "a cast is forgotten": (written_low_precision, (torch.randn(4), torch.randn(4).to(half))),
    "a product is forgotten": (
        written_by_a_reduction,
        (torch.randn(4).to(half), torch.tensor(-0.5).to(half)),
    ),
    "in place before the last level": (written_and_then_reduced, (torch.randn(5, 6, 4),)),
    "a slice from before the start": (written_before_its_start, (torch.randn(4, 3),)),
    "a buffer with gaps": (scattered_into_a_diagonal, (torch.randn(4, 4, 2),)),
    "the largest of bools": (lambda x: x.max(-1)[1], (torch.randn(4, 4) > 0,)),
    "circular padding": (lambda x: F.pad(x, [1, 2], mode="circular"), (torch.randn(4, 5),)),
    "chunks": (lambda x: x.chunk(3, -1)[1] * 2, (torch.randn(6, 5),)),
    "bytes are clamped to a wrapped bound": (
        lambda x: x.clamp(-1, 2),
        (torch.arange(6, dtype=torch.uint8),),
    ),
    "a narrowed dimension that is one": (
        lambda x, y: torch.maximum(x, y.narrow(1, 7, y.shape[1] - 7)),
        (torch.randn(3), torch.randn(3, 8)),
    ),
    "a padding that keeps nothing": (lambda x: F.pad(x, [0, 2, -1, 1]), (torch.randn(2, 1, 6),)),
    "a piece that a guard makes one": (
        lambda x, y: torch.maximum(x, y.tensor_split(2, 1)[1]),
        (torch.randn(4, 3), torch.randn(4, 2)),
    ),
    "a stepped slice that a guard makes one": (lambda x: -x[::3].expand(3), (torch.randn(2),)),
    "one of unbind": (lambda x: x.unbind(0)[-1], (torch.randn(4, 3),)),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", CASES)
def test_program_equals_eager(name, symbolic):
    fn, inputs = CASES[name]
    ours, theirs = ([x.clone() for x in inputs] for _ in range(2))
    examples = list(ours)
    if symbolic:
        fake = guards.FakeMode(guards.ShapeEnv())
        examples = [
            fake.fakeify(x, guards.LocalSource(f"x{i}"), set(range(x.dim())))
            for i, x in enumerate(ours)
        ]
    with torch.no_grad():
        compiled = compile_graph(fx.symbolic_trace(fn), examples, SETTINGS)
        got, want = compiled(*ours), fn(*theirs)
    got, want = (x if isinstance(x, tuple) else (x,) for x in (got, want))
    for mine, true in zip((*got, *ours), (*want, *theirs), strict=True):
        assert mine.dtype is true.dtype
        torch.testing.assert_close(mine, true, rtol=2e-2 if mine.dtype is half else 1e-5, atol=1e-6)


def written_through_a_view(x):
    padded = F.pad(x, [0, 0], mode="replicate")
    turned = padded.permute([1, 0])
    torch.mul(turned, turned, out=turned)
    return padded, turned


def returned_twice(x):
    x.masked_fill_(x > 0, 3)
    result = x.reciprocal()
    return result, result


@pytest.mark.parametrize("fn", [written_through_a_view, returned_twice])
def test_results_share_memory_as_eagers_do(fn):
    x = torch.randn(4, 1).t().contiguous().t()
    with torch.no_grad():
        first, second = compile_graph(fx.symbolic_trace(fn), [x.clone()], SETTINGS)(x.clone())
        want = fn(x.clone())
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    for mine, true in zip((first, second), want, strict=True):
        torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("fn", [lambda x: x.narrow(0, 1, 1).neg_(), lambda x: x.copy_(x)])
def test_a_write_that_eager_allows_into_an_overlapping_input_is_left_to_eager(fn):
    x = torch.randn(1, 3).expand(4, 3)
    with torch.no_grad(), pytest.raises(UnsupportedError, match="overlaps itself"):
        compile_graph(fx.symbolic_trace(fn), [x], SETTINGS)
