"""Writes that eager refuses happen once or not at all, with every effect before them."""

import operator

import pytest
import torch
import torchsmith_tracer

one = lambda: torch.ones(1).expand(3)  # noqa: E731 - three elements in one place
REFUSED = {
    "add to itself": (lambda x: x.add_(1), one),
    "fill": (lambda x: x.fill_(3), one),
    "copy": (lambda x: x.copy_(torch.ones(3)), one),
    "masked": (lambda x: x.masked_fill_(x > 0, 5.0), one),
    "out": (lambda x: torch.add(x, 1, out=x), one),
    "each": (lambda x: torch._foreach_mul_([x], 2), one),
    "shifted": (lambda x: x[1:].copy_(x[:-1]), lambda: torch.arange(4.0)),
    "shifted item": (lambda x: operator.setitem(x, slice(1, None), x[:-1]), lambda: torch.ones(4)),
    "transposed": (lambda x: x.add_(x.t()), lambda: torch.arange(4.0).view(2, 2)),
    "bool": (lambda x: x.sub_(True), lambda: torch.ones(3, dtype=torch.bool)),
    "no kernel": (lambda x: x.floor(), lambda: torch.ones(3, dtype=torch.bool)),
    "no integers": (lambda x: x.lerp(x, x), lambda: torch.ones(3, dtype=torch.int64)),
    "leaf": (lambda x: x.add_(1), lambda: torch.ones(3, requires_grad=True)),
    "drawn too likely": (lambda x: x.bernoulli_(1.5), lambda: torch.ones(3)),
    "drawn with less than no spread": (lambda x: x.normal_(0, -1.0), lambda: torch.ones(3)),
    "drawn from nothing": (lambda x: x.uniform_(2.0, 1.0), lambda: torch.ones(3)),
    "drawn at no rate": (lambda x: x.exponential_(0.0), lambda: torch.ones(3)),
    "drawn into one place": (lambda x: x.bernoulli_(0.5), one),
    "drawn by data": (lambda x: x.copy_(torch.bernoulli(x)), lambda: torch.full((3,), 1.5)),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("handled", [False, True])
def test_refused_operators_do_not_repeat_what_came_before(name, handled):
    body, make = REFUSED[name]

    def run(compile):
        log, acc, rows = [], torch.zeros(2), []

        def f(x):
            log.append("before")
            acc.add_(1)
            try:
                body(x)
            except RuntimeError:
                if not handled:
                    raise
                log.append("handled")
            acc.mul_(2)
            return x * 2

        fn = compile(f)
        for _ in range(3):
            x = make()
            try:
                result = fn(x)
            except RuntimeError as e:
                result = str(e)
            rows.append(repr((result, acc, acc._version, x, log)))
        return rows

    eager = run(lambda f: f)
    assert run(lambda f: torchsmith_tracer.compile(f, backend="eager")) == eager


def test_writes_that_overlap_as_eager_allows_stay_in_one_graph():
    def f(x):
        x[0] = x[1]
        x[2:].copy_(x[:2])
        x.add_(x)
        x[:, 0].mul_(x[:, 1])
        return x * 1

    compiled = torchsmith_tracer.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        x, y = torch.rand(4, 3), None
        y = x.clone()
        assert torch.equal(compiled(x), f(y)) and torch.equal(x, y)


def test_writes_to_lists_are_mutations():
    def f(a, b, i):
        y = a * b
        torch._foreach_add_([a, b], 1)
        torch._foreach_mul_([a], [b])
        return y, a[i]

    compiled = torchsmith_tracer.compile(f, backend="eager")
    for i in (0, 1, 7, 0):
        rows = []
        for run in (f, compiled):
            a, b = torch.ones(2), torch.full((2,), 3.0)
            try:
                result = run(a, b, torch.tensor([i]))
            except IndexError as e:
                result = str(e)
            rows.append(repr((result, a, b, a._version, b._version)))
        assert rows[0] == rows[1]


def test_backward_sees_writes_to_lists():
    def f(a, s):
        y = a * s
        torch._foreach_add_([s], 1)
        y.sum().backward()

    compiled = torchsmith_tracer.compile(f, backend="eager")
    for _ in range(2):
        texts = []
        for run in (f, compiled):
            a, s = torch.ones(3, requires_grad=True), torch.ones(3)
            with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
                run(a, s)
            texts.append((str(caught.value), s.tolist(), s._version))
        assert texts[0] == texts[1]


def test_no_copies_are_kept_for_draws_that_cannot_fail():
    norm = torch.nn.BatchNorm1d(3)

    def f(x):
        x = norm(x)
        return x * x.new_empty(len(x), 1).bernoulli_(0.9) + torch.zeros(3).normal_(0, 0.1)

    fn = torchsmith_tracer.compile(f, backend="eager")
    fn(torch.ones(4, 3))
    with torch.profiler.profile() as seen:
        fn(torch.ones(4, 3))
    names = [event.name for event in seen.events()]
    assert "aten::clone" not in names and "aten::bernoulli_" in names
