"""Marks of ``torch.compiler`` and our own on callables: each gives eager's results, and the graphs
that it stands for."""

import _struct
import functools
import operator
import sys
import warnings

import pytest
import torch
import torchsmith_tracer as tracer
from torch import nn
from torchsmith_tracer.errors import FullGraphError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._dynamo

X = torch.arange(6.0).reshape(2, 3)


def plain(a):
    return a.sin() + 1


@torch.compiler.disable
def of_torch(a):
    return a.sin() + 1


@torch.compiler.disable(reason="it logs")
def with_a_reason(a):
    return a.sin() + 1


@torch.compiler.disable(recursive=False)
def by_itself(a):
    return plain(a) * 2


@tracer.disable(reason="it logs")
def of_ours(a):
    return a.sin() + 1


class Forward(nn.Module):
    @torch.compiler.disable
    def forward(self, a):
        return a.sin()


whole = torch.compiler.disable(nn.Linear(3, 3))
ours = tracer.disable(nn.Linear(3, 3), reason="it logs")


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (of_torch, ""),
        (with_a_reason, ": it logs"),
        (by_itself, ""),
        (of_ours, ": it logs"),
        (Forward(), ""),
        (whole, ""),
        (ours, ": it logs"),
    ],
)
def test_what_is_disabled_splits_the_graph(fn, why, agree, capture):
    log = agree(lambda a: fn(a + 1) * 2, X)
    assert capture.n == 2
    assert f"(disabled{why})" in log.breaks[0].what
    with pytest.raises(FullGraphError):
        tracer.compile(lambda a: fn(a), fullgraph=True)(X)


def test_what_is_disabled_is_not_compiled_and_says_so():
    for fn in (of_torch, of_ours):
        assert tracer.compile(fn) is fn
        report = tracer.explain(fn)(X)
        assert report.graph_count == 0 and torch.equal(report.result, fn(X))


def test_a_wrapper_of_what_is_disabled_is_compiled(check):
    for fn in (of_torch, of_ours):
        wrapper = functools.wraps(fn)(lambda a: a + 1)
        check(lambda a, wrapper=wrapper: wrapper(a) * 2, X)


def allowed(how):
    def opaque(a, k=1):
        if a.dim() == 2:
            a = a.sin()
        return a + k, a * k

    how(opaque)
    return opaque


@pytest.mark.parametrize("how", [torch.compiler.allow_in_graph, tracer.allow_in_graph])
def test_what_is_allowed_is_one_node(how, check, capture):
    opaque = allowed(how)
    check(lambda a: opaque(a * 2, k=3)[1] + 1, X, graphs=1, fullgraph=True)
    assert capture.targets().count(opaque) == 1


def test_what_is_allowed_may_be_in_c(check, capture):
    tracer.allow_in_graph(operator.indexOf)  # it compares, which a graph does of tensors
    assert tracer.allow_in_graph(plain) is plain
    try:
        check(lambda a: plain(a) * 2, X, graphs=1, fullgraph=True)
        assert plain in capture.targets()
    finally:
        del plain.__torchsmith_allowed__
    with pytest.raises(TypeError):
        tracer.allow_in_graph(3)


def test_what_is_allowed_and_cannot_be_run_without_data_breaks(agree, capture):
    @tracer.allow_in_graph
    def branches(a):
        return a + 1 if a.sum() > 0 else a - 1

    for sign in (1, -1):
        agree(lambda a: branches(a * 2) * 3, X * sign)
    wrapped = functools.wraps(branches)(lambda a: a * 5)
    assert torch.equal(tracer.compile(lambda a: wrapped(a))(X), X * 5)


def test_constant_results_are_asked_for_once(capture):
    asked = []

    class Table:
        def __init__(self, k):
            self.k = k

        @torch.compiler.assume_constant_result
        def get(self, n):
            asked.append(n)
            return torch.full((3,), float(self.k)), self.k + n

    def fn(a, table):
        rows, k = table.get(2)
        return a * rows + k

    run = tracer.compile(fn, backend=capture, fullgraph=True)
    one, two = Table(1), Table(2)
    for table, wanted in ((one, X + 3), (one, X + 3), (two, X * 2 + 4), (one, X + 3)):
        assert torch.equal(run(X, table), wanted)
    assert asked == [2, 2] and capture.n == 2
    one.k = 7  # the user has said that this does not happen
    assert torch.equal(run(X, one), X + 3)


def test_a_constant_result_of_a_tensor_is_none(agree):
    @torch.compiler.assume_constant_result
    def total(a):
        return a.sum().item()

    for k in (1, 2):
        agree(lambda a: a + total(a * 2), X * k)


def test_what_raises_instead_of_giving_a_constant(check):
    @torch.compiler.assume_constant_result
    def fails(n):
        raise KeyError(n)

    def fn(a):
        try:
            return a + fails(3)
        except KeyError as e:
            return a + e.args[0]

    check(fn, X, graphs=1)


@torch.jit.script
def scripted(a):
    return torch.relu(a) + 1


def traced(a):
    return torch.relu(a) + 1


@torch.jit.script_if_tracing
def scripted_if_tracing(a):
    return torch.relu(a) + 1


@torch.jit.ignore
def ignored(a):
    return torch.relu(a) + 1


@torch.compiler.nested_compile_region
def nested(a):
    return torch.relu(a) + 1


of_stock = torch.compile(traced, backend="eager")


@pytest.mark.parametrize("fn", [scripted, scripted_if_tracing, ignored, nested, of_stock])
def test_wrapped_functions_are_looked_into(fn, check, capture):
    check(lambda a: fn(fn(a)) * 2, X, graphs=1, fullgraph=True)
    assert capture.targets().count(torch.relu) == 2
    assert torch.equal(tracer.compile(fn)(X), traced(X))


def test_modules_of_the_stock_compiler_are_looked_into(check):
    inner = torch.compile(nn.Linear(3, 3), backend="eager")
    check(lambda a: inner(a) * 2, X, graphs=1, fullgraph=True)


def test_wrappers_of_compiled_functions_are_not_dropped(check):
    for fn in (of_stock, scripted, nested):
        wrapper = functools.wraps(fn)(lambda a, fn=fn: fn(a) * 10)
        check(lambda a, wrapper=wrapper: wrapper(a), X)


def test_scripted_modules_and_traces_run_as_they_are(agree):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        baked = torch.jit.trace(lambda a: a + 1 if a.sum() > 0 else a - 1, X)
        modules = [torch.jit.script(nn.Linear(3, 3)), torch.jit.trace(nn.Linear(3, 3), X), baked]
    for module in modules:
        log = agree(lambda a, module=module: module(a * 2) + 1, X)
        assert [b.id for b in log.breaks] == ["TS-T010"]
    assert torch.equal(tracer.compile(lambda a: baked(a))(-X), -X + 1)  # not the source's -X - 1


def test_compiled_functions_within_the_stock_compiler():
    inner = tracer.compile(traced)
    run = torch.compile(lambda a: inner(a * 2) + 1, backend="eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(run(X), traced(X * 2) + 1)


def test_breaks_that_the_user_asks_for(agree, capture):
    def fn(a):
        a = a + 1
        torch._dynamo.graph_break()
        torch.compiler.cudagraph_mark_step_begin()
        return a * 2

    log = agree(fn, X)
    assert [b.id for b in log.breaks] == ["TS-T010", "TS-T037"] and capture.n == 2


def test_traced_code_knows_that_it_is_compiled():
    def fn(a):
        answers = [torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling()]
        return a + 1, answers, torch.jit.is_scripting(), torch.jit.is_tracing()

    assert fn(X)[1:] == ([False] * 2, False, False)
    assert tracer.compile(fn, fullgraph=True)(X)[1:] == ([True] * 2, False, False)
    assert tracer.compile(lambda a: of_torch(a) + torch.compiler.is_compiling())(X).shape == (2, 3)


def test_substitutes_are_traced_in_place_of_what_is_in_c(monkeypatch, check, capture):
    table = sys.modules["torchsmith_tracer._src.values.builtins.registry"]
    for name in ("BUILTINS", "FUNCTIONS"):
        monkeypatch.setattr(table, name, dict(getattr(table, name)))

    @tracer.substitute_in_graph(_struct.calcsize)
    def calcsize(format, /):
        return len(format) * 100

    @tracer.substitute_in_graph(plain)
    def doubled(a):
        return a * 2

    run = tracer.compile(lambda a: plain(a) + _struct.calcsize("ii"), fullgraph=True)
    assert torch.equal(run(X), X * 2 + 200) and _struct.calcsize("ii") == 8
    with pytest.raises(TypeError, match="has other parameters than"):
        tracer.substitute_in_graph(plain)(lambda b, c: b)
    for wrong in (int, 3):
        with pytest.raises(TypeError, match="needs a function"):
            tracer.substitute_in_graph(wrong)


def test_modules_are_made_inside_after_torchs_own_compiler_was_used():
    of_stock(torch.ones(2))  # from here on every module of the process notes that it was made

    def f(x):
        return nn.Softmax(dim=-1)(x), nn.Sequential(nn.ReLU())[:1](x)

    x = torch.randn(2, 3)
    for mine, true in zip(tracer.compile(f, backend="eager", fullgraph=True)(x), f(x)):
        assert torch.equal(mine, true)
