"""What is decided differently from the stock compiler (docs/decisions/0016): the results are
eager's, the counts are ours."""

import random
import threading

import pytest
import torch
import torch._dynamo
import torchsmith_tracer as tracer
from torch import nn
from torch._dynamo.comptime import comptime

X = torch.arange(6.0).reshape(2, 3)


def test_custom_operators_without_a_tag_are_nodes(capture):
    library = torch.library.Library("torchsmith_tests", "FRAGMENT")
    try:
        library.define("untagged(Tensor a, int k) -> Tensor")
        library.impl("untagged", lambda a, k: a * k, "CompositeExplicitAutograd")
        library._register_fake("untagged", lambda a, k: torch.empty_like(a))
        op = torch.ops.torchsmith_tests.untagged
        run = tracer.compile(lambda a: op(a + 1, 3) - 1, backend=capture, fullgraph=True)
        assert torch.equal(run(X), (X + 1) * 3 - 1)
        assert capture.n == 1 and op in capture.targets()
    finally:
        library._destroy()


def test_callbacks_at_compile_time_do_nothing(check, capture):
    called = []

    def fn(a):
        @comptime
        def note(context):
            called.append(context)

        return a * 2

    check(fn, X, graphs=1, fullgraph=True)
    assert called == [] and len(capture.targets()) == 1


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.random(),
        lambda: random.randint(1, 9),
        lambda: random.uniform(1.0, 2.0),
        lambda: random.choice([1, 2, 3]),
        lambda: sum(random.sample(range(9), 3)),
    ],
)
def test_random_numbers_of_python_are_drawn_between_graphs(draw, capture):
    def fn(a):
        return a * draw() + draw()

    run = tracer.compile(fn, backend=capture)
    results = []
    for call in (fn, run):
        random.seed(4)
        results.append(([call(X).tolist() for _ in range(3)], random.random()))
    assert results[0] == results[1]
    assert {b.id for b in run._torchsmith_region.log.breaks} <= {"TS-T010", "TS-T015"}
    for _ in range(20):
        run(X)
    graphs = capture.n
    for _ in range(20):
        run(X)
    assert capture.n == graphs <= 6  # the numbers have become symbolic


@pytest.mark.parametrize("value", [3, 2.5])
def test_numbers_in_closures_that_change_become_symbolic(value, capture):
    k = value

    def fn(a):
        return a * k

    run = tracer.compile(fn, backend=capture, fullgraph=True)
    for step in range(4):
        k = value + step
        assert torch.equal(run(X), X * k)
    assert capture.n == 2


def test_what_a_function_that_is_disabled_by_itself_calls_is_eager(capture):
    def inner(a):
        return a.sin() + torch.compiler.is_compiling()

    @torch.compiler.disable(recursive=False)
    def outer(a):
        return inner(a) * 2

    run = tracer.compile(lambda a: outer(a + 1) - 1, backend=capture)
    assert torch.equal(run(X), (X + 1).sin() * 2 - 1) and capture.n == 2


def test_addresses_are_never_compiled_in(capture):
    run = tracer.compile(lambda a: a * 2, backend=capture, fullgraph=True)
    for k in (1.0, 2.0):
        a = torch.full((3,), k)
        torch._dynamo.mark_static_address(a, guard=True)
        assert torch.equal(run(a), a * 2)
    assert capture.n == 1


def test_lazy_modules_are_made_by_their_first_call(capture):
    own = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    run = tracer.compile(own, backend=capture)
    for _ in range(3):
        assert torch.equal(run(X), own(X))
    assert not any(isinstance(m, nn.modules.lazy.LazyModuleMixin) for m in own)
    graphs = capture.n
    assert torch.equal(run(X * 2), own(X * 2)) and capture.n == graphs


def test_threads_may_compile_one_object_at_once():
    layer = nn.Linear(3, 3).eval()

    def fn(a, k, table):
        table.append(k)
        a = layer(a) * k
        torch._dynamo.graph_break()
        return a.relu() + len(table)

    run = tracer.compile(fn, options={"recompile_limit": 4})
    start, wrong = threading.Barrier(4), []

    def work(number):
        start.wait(10)
        for step in range(15):
            a, k = torch.full((1 + (step * number) % 4, 3), float(step)), (step + number) % 3
            with torch.set_grad_enabled(number % 2 == 0):
                result, expected = run(a, k, own := []), fn(a, k, other := [])
                if not torch.equal(result, expected) or own != other:
                    wrong.append((number, step))
                if result.requires_grad is not torch.is_grad_enabled():
                    wrong.append((number, "grad mode"))

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)
