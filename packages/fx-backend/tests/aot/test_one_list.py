"""Results that are items of one list of views have one node of autograd's, as in eager."""

import pytest
import torch
from torch.profiler import profile
from torchsmith_fx_backend import Settings
from torchsmith_fx_backend._src.driver import compile_training

SETTINGS = Settings(graph_cache=False, verify=True, strict=True)

PROGRAMS = {
    "rows of a result": lambda x: tuple((x * 2).unbind(0)),
    "rows of an input": lambda x: (x.exp(), *x.unbind(0)),
    "of two sizes": lambda x: (lambda y: (*y.split([3, 6], 0), *y.chunk(3, 0)))(x.sin()),
    "a list of an item": lambda x: tuple((x * 3).unbind(1)[1].unbind(0)),
    "views of items": lambda x: tuple(y.view(2, 2).t() for y in (x * 2).unbind(0)),
    "one item twice": lambda x: (lambda y: (y.unbind(0)[0], y.unbind(0)[0], y.unbind(0)[1]))(x * 2),
    "an item and a view of another of it": lambda x: (
        lambda y: (y.unbind(0)[0], y.unbind(0)[0].view(2, 2), *y.unbind(0)[0].unbind(0))
    )(x * 2),
    "the same list twice": lambda x: (lambda y: (*y.unbind(0), *y.unbind(0)))(x.cos()),
}


def counts(run, x):
    with profile() as seen:
        results = run(x)
        picked = results[:: max(1, len(results) // 3)]
        (grad,) = torch.autograd.grad(sum((y * y.cos()).sum() for y in picked), x)
    names = ("aten::unbind", "aten::split", "aten::zeros", "UnbindBackward0", "SplitBackward0")
    return grad, {e.key: e.count for e in seen.key_averages() if e.key in names}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_many_nodes_as_in_eager(name):
    x = torch.randn(9, 4, dtype=torch.double, requires_grad=True)
    run = compile_training(PROGRAMS[name], [x], SETTINGS)
    (got, ours), (want, eagers) = counts(run, x), counts(PROGRAMS[name], x)
    torch.testing.assert_close(got, want)
    for operator, count in ours.items():
        assert count <= eagers.get(operator, 0), operator


@pytest.mark.parametrize("name", ["one item twice", "an item and a view of another of it"])
def test_a_hook_belongs_to_one_result(name):
    x = torch.randn(9, 4, dtype=torch.double, requires_grad=True)
    grads = []
    for run in (compile_training(PROGRAMS[name], [x], SETTINGS), PROGRAMS[name]):
        first, second, *_ = run(x)
        assert first is not second
        first.register_hook(lambda grad: grad * 10)
        grads.append(torch.autograd.grad(first.sum() + second.sum(), x)[0])
    torch.testing.assert_close(*grads)


def test_an_item_may_not_be_written_as_in_eager():
    x = torch.randn(3, 4, requires_grad=True)
    run = compile_training(PROGRAMS["rows of a result"], [x], SETTINGS)
    for each in (run, PROGRAMS["rows of a result"]):
        with pytest.raises(RuntimeError, match="function that returns multiple views"):
            each(x)[1].add_(1)
