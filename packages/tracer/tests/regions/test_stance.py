"""The stance: nothing is compiled, or nothing new, within its reach; results are eager's."""

import os
import threading

import pytest
import torch
import torchsmith_tracer as tracer
from torch import nn
from torchsmith_tracer.errors import FullGraphError, RecompileError

X, Y, D = torch.ones(2, 3), torch.ones(4, 3), torch.ones(2, 3).double()


@pytest.fixture(autouse=True)
def default():
    yield
    tracer.set_stance("default")


def steps(a, k=1, *rest, scale=2, **more):
    a = a * scale + k
    os.getpid()
    return a - len(rest) - len(more)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, a):
        os.getpid()
        return self.layer(a).relu()


class Runs:
    """A backend that counts its graphs and their calls."""

    def __init__(self):
        self.graphs = self.calls = 0

    def __call__(self, gm, inputs):
        self.graphs += 1

        def run(*args):
            self.calls += 1
            return gm.forward(*args)

        return run


@pytest.mark.parametrize(
    "target", [steps, Net(), Net().forward], ids=["function", "module", "method"]
)
def test_all_runs_eagerly_and_compiled_code_is_kept(target):
    runs = Runs()
    run = tracer.compile(target, backend=runs)
    run(X)
    before = runs.graphs, runs.calls
    with tracer.set_stance("force_eager"):
        for a in (X, D.float(), Y):
            assert torch.equal(run(a), target(a))
        late = tracer.compile(target, backend=runs)
        assert torch.equal(late(X), target(X))
    assert (runs.graphs, runs.calls) == before
    assert torch.equal(run(X), target(X)) and torch.equal(late(X), target(X))
    assert runs.calls > before[1] and runs.graphs == 2 * before[0]


def test_signatures_are_kept_while_all_is_eager():
    run = tracer.compile(steps)
    run(X)
    with tracer.set_stance("force_eager"):
        for args, kwargs in [((X, 5, 6, 7), {"other": 1}), ((X,), {"scale": 3, "k": 4})]:
            assert torch.equal(run(*args, **kwargs), steps(*args, **kwargs))
        with pytest.raises(TypeError):
            run()


def test_versions_that_exist_are_used():
    runs = Runs()
    run = tracer.compile(lambda a: a * 2, backend=runs)
    with tracer.set_stance("eager_on_recompile"):
        assert torch.equal(run(X), X * 2) and runs.graphs == 0  # there is none yet
    run(X)
    with tracer.set_stance("eager_on_recompile"):
        for a, calls in ((X, 2), (Y, 2), (D, 2), (X, 3)):
            assert torch.equal(run(a), a * 2) and (runs.graphs, runs.calls) == (1, calls)
    assert torch.equal(run(D), D * 2) and runs.graphs == 2


def test_recompiles_are_errors_that_say_why():
    run = tracer.compile(lambda a: a * 2)
    with tracer.set_stance("fail_on_recompile"):
        with pytest.raises(RecompileError, match="never compiled"):
            run(X)
    run(X)
    with tracer.set_stance("fail_on_recompile"):
        assert torch.equal(run(X), X * 2)
        with pytest.raises(RecompileError, match="float32.*float64"):
            run(D)
    assert torch.equal(run(D), D * 2)


def test_function_context_and_decorator():
    runs = Runs()
    run = tracer.compile(lambda a: a * 2, backend=runs)

    @tracer.set_stance("force_eager")
    def outer(a, fail=False):
        if fail:
            raise KeyError("inside")
        with tracer.set_stance("default"):
            inner = run(a)
        return run(a) + inner

    assert torch.equal(run(X), X * 2) and runs.calls == 1  # a decorator does nothing yet
    assert torch.equal(outer(X), X * 4) and runs.calls == 2
    with pytest.raises(KeyError):
        outer(X, fail=True)
    run(X)
    assert runs.calls == 3
    tracer.set_stance("force_eager")
    run(X)
    assert runs.calls == 3
    tracer.set_stance("default")
    run(X)
    assert runs.calls == 4
    with pytest.raises(ValueError, match="valid: default, force_eager"):
        tracer.set_stance("fast")


def test_a_stance_is_set_outside():
    def program(a):
        a = a + 1
        with tracer.set_stance("force_eager"):
            a = a * 2
        return a - 1

    assert torch.equal(tracer.compile(program)(X), program(X))
    with pytest.raises(FullGraphError, match="changes how compiled functions run"):
        tracer.compile(program, fullgraph=True)(X)


def test_stances_change_while_others_call():
    run = tracer.compile(steps, dynamic=False, options={"recompile_limit": 64})
    stop, wrong = threading.Event(), []

    def work(number):
        step = 0
        while not stop.is_set() and step < 2000:
            step += 1
            a = torch.full((1 + (step + number) % 5,), float(step))
            if not torch.equal(run(a, number), steps(a, number)):
                wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(2)]
    for thread in threads:
        thread.start()
    for n in range(40):
        with tracer.set_stance(("force_eager", "eager_on_recompile")[n % 2]):
            assert torch.equal(run(X), steps(X))
        assert torch.equal(run(Y), steps(Y))
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)
