"""Operators whose results nothing uses still check their arguments."""

import pytest
import torch
import torch.nn.functional as F
import torchsmith


def unused(call):
    def f(x, i):
        call(x, i)
        return x + 1

    return f


def handled(x, i):
    try:
        x[i]
        found = 1
    except IndexError:
        found = 0
    return x + found


def through_others(x, i):
    y = x[i] * 2
    y.sum().sin()
    return x * 2


def into_own_memory(x, i):
    y = x * 2
    y[i] = 0
    y.view(-1).index_fill_(0, i, 1.0)
    return x + 1


def differentiated(x, i):
    w = torch.ones(5, requires_grad=True)
    w[i]
    (x * w).sum().backward()
    return w.grad


PROGRAMS = {
    "index": unused(lambda x, i: x[i]),
    "gather": unused(lambda x, i: torch.gather(x, 0, i)),
    "index_select": unused(lambda x, i: torch.index_select(x, 0, i)),
    "embedding": unused(lambda x, i: F.embedding(i, x.view(5, 1))),
    "take": unused(lambda x, i: x.take(i)),
    "index_fill": unused(lambda x, i: x.index_fill(0, i, 0.0)),
    "scatter": unused(lambda x, i: x.scatter(0, i, 0.0)),
    "index_put": unused(lambda x, i: x.index_put((i,), torch.ones(2))),
    "one_hot": unused(lambda x, i: F.one_hot(i, 5)),
    "cross_entropy": unused(lambda x, i: F.cross_entropy(x.view(1, 5), i[:1])),
    "division": unused(lambda x, i: torch.tensor(4) // (i - 1)),
    "two": unused(lambda x, i: (x[i], x.view(5, 1)[i])),
    "handled": handled,
    "through others": through_others,
    "into own memory": into_own_memory,
    "differentiated": differentiated,
}


@pytest.mark.parametrize("backend", ["eager", "smith"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_unused_results_are_checked(name, backend):
    f = PROGRAMS[name]
    compiled = torchsmith.compile(f, backend=backend)
    x = torch.rand(5)
    for i in ([0, 2], [2, 7], [7, 2], [0, -1], [1, 2], [3, 4]):
        rows = []
        for run in (f, compiled):
            try:
                rows.append(repr(run(x, torch.tensor(i))))
            except (IndexError, RuntimeError) as e:
                rows.append(repr(e))
        assert rows[0] == rows[1]


def test_unused_results_are_not_kept():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    def f(x, i):
        x[i].exp()
        return x + 1

    compiled = torchsmith.compile(f, backend=backend)
    x = torch.rand(5, requires_grad=True)
    result = compiled(x, torch.tensor([1]))
    assert isinstance(result, torch.Tensor)
    (checked,) = graphs
    results = checked.graph.output_node().args[0]
    assert len(results) == 2 and not results[1].meta["example_value"].requires_grad
