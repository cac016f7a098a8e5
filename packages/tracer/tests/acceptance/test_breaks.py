"""State around graph breaks: torch's modes, contexts, live variables, branches on data."""

import pytest
import torch
import torchsmith_tracer as tracer
from torchsmith_tracer.errors import FullGraphError

X = torch.arange(6.0).reshape(2, 3)
SEEN = []


@tracer.disable
def look(*what):
    SEEN.append((torch.is_grad_enabled(), *what))


def graph_break(a):
    a = a + 1
    look()
    return a * 2


def grad_mode_set(a):
    torch.set_grad_enabled(False)
    b = a * 2
    look()
    c = b * 3, torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return b.requires_grad, c


def within_no_grad(a):
    with torch.no_grad():
        b = a * 2
        look()
        c = b + 1
    return b.requires_grad, c.requires_grad, (a * c).requires_grad, c


class Context:
    def __enter__(self):
        SEEN.append("enter")
        return self

    def __exit__(self, *exc):
        SEEN.append("exit")


def within_a_context(a):
    with Context():
        a = a + 1
        look()
        a = a * 2
    return a - 1


def within_try(a):
    try:
        a = a + 1
        look()
        a = a * 2
    finally:
        SEEN.append("finally")
    return a - 1


def builds_a_list(a):
    parts = [a + 1]
    other = parts
    look(len(parts))
    parts.append(a * 2)
    look(len(other))
    other.append(len(parts))
    return parts, parts is other


def dead_local(a):
    dead = a * 100
    kept = a + dead.sum()
    look()
    return kept * 2


@pytest.mark.parametrize(
    ("fn", "graphs"),
    [
        (graph_break, 2),
        (grad_mode_set, 2),
        (within_no_grad, 2),
        (within_a_context, 2),
        (within_try, 2),
        (builds_a_list, 2),
        (dead_local, 2),
    ],
)
def test_what_is_around_a_break_stays(fn, graphs, agree, capture):
    SEEN.clear()
    expected = repr(fn(X.clone().requires_grad_())), list(SEEN)
    run = tracer.compile(fn, backend=capture)
    for _ in range(2):
        SEEN.clear()
        assert (repr(run(X.clone().requires_grad_())), SEEN) == expected
        assert torch.is_grad_enabled()
    assert capture.n == graphs
    if fn is dead_local:
        assert len(capture.outputs(0)) == 1
    with pytest.raises(FullGraphError) as raised:
        tracer.compile(fn, fullgraph=True)(X.clone().requires_grad_())
    assert isinstance(raised.value, RuntimeError)
    torch.set_grad_enabled(True)


def if_positive(a):
    if a.sum() > 0:
        return a + 1
    return a - 1


def if_item(a):
    if a.item() > 3:
        return a + 1
    return a - 1


@pytest.mark.parametrize("capture_scalars", [False, True])
@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (if_positive, [X, -X, X * 2, -X * 2]),
        (if_item, [torch.tensor(n) for n in (4, 5, 2, 1, 9)]),
    ],
)
def test_both_sides_of_a_branch_on_data_are_compiled_once(fn, inputs, capture_scalars, capture):
    options = {"capture_scalar_outputs": capture_scalars}
    run = tracer.compile(fn, backend=capture, options=options)
    for a in inputs:
        assert torch.equal(run(a), fn(a))
    assert [b.id for b in run._torchsmith_region.log.breaks] in (["TS-T012"], ["TS-T013"])
    assert capture.n <= 3  # the condition, and one for each side
    with pytest.raises(FullGraphError):
        tracer.compile(fn, fullgraph=True, options=options)(inputs[0])
