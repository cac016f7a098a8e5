"""What a backend is asked, and what becomes of backends that raise, ask to be skipped, or compute
something else."""

import warnings

import pytest
import torch
import torchsmith_tracer as tracer
from torchsmith_tracer.errors import BackendError, RecompileLimitError, SkipGraph, TracerWarning

X = torch.arange(6.0).reshape(2, 3)


def fn(a):
    b = a * 2
    return b + 1, b - 1


def skips(gm, inputs):
    raise SkipGraph("not for me")


def test_a_backend_may_ask_to_be_skipped():
    run = tracer.compile(fn, backend=skips)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert all(map(torch.equal, run(X), fn(X)))
    (report,) = run._torchsmith_region.log.frames
    assert report.eager and "not for me" in report.note


def test_a_backend_of_the_stock_compiler_may_ask_to_be_skipped():
    from torch._dynamo.exc import SkipFrame

    def backend(gm, inputs):
        raise SkipFrame("no")

    assert all(map(torch.equal, tracer.compile(fn, backend=backend)(X), fn(X)))


@pytest.mark.parametrize("number", [1, 2])
def test_skipping_after_a_break_has_each_effect_once(number):
    made, said = [], []

    @tracer.disable
    def say(what):
        said.append(what)

    def steps(a):
        a = a + 1
        say("one")
        a.mul_(2)
        say("two")
        return a - 1

    def backend(gm, inputs):
        made.append(gm)
        if len(made) == number:
            raise SkipGraph
        return gm.forward

    run = tracer.compile(steps, backend=backend)
    for _ in range(2):
        assert torch.equal(run(X), (X + 1) * 2 - 1)
    assert said == ["one", "two"] * 2


def raises(gm, inputs):
    raise ValueError("inner problem")


def gives_a_number(gm, inputs):
    return 42


@pytest.mark.parametrize("backend", [raises, gives_a_number])
def test_errors_of_a_backend_may_be_suppressed(backend):
    with pytest.raises(BackendError, match=f"{backend.__name__}.*(inner problem|42)"):
        tracer.compile(fn, backend=backend)(X)
    run = tracer.compile(fn, backend=backend, options={"suppress_backend_errors": True})
    with pytest.warns(TracerWarning, match=backend.__name__) as said:
        for _ in range(3):
            assert all(map(torch.equal, run(X), fn(X)))
    assert len(said) == 1


def wrong(gm, inputs):
    return lambda *args: tuple(r + 1 for r in gm(*args))


def wrong_dtype(gm, inputs):
    return lambda *args: tuple(r.double() for r in gm(*args))


def writes(gm, inputs):
    def run(*args):
        out = gm(*args)
        args[0].zero_()
        return out

    return run


@pytest.mark.parametrize("backend", [wrong, wrong_dtype, writes])
def test_verification_finds_wrong_backends(backend):
    run = tracer.compile(fn, backend=backend, options={"verify_correctness": True})
    with pytest.raises(BackendError, match=f"{backend.__name__}.* incorrect results"):
        run(X)
    assert torch.equal(X, torch.arange(6.0).reshape(2, 3))


def test_verification_lets_right_backends_pass(capture):
    layer = torch.nn.Linear(3, 3)
    before = [p.clone() for p in layer.parameters()]

    def step(a, other):
        other.mul_(2)
        return layer(a).relu() + other

    def nothing(gm, inputs):
        capture(gm, inputs)

    for backend in (capture, nothing):
        run = tracer.compile(step, backend=backend, options={"verify_correctness": True})
        for k in (1.0, 2.0):
            one, two = torch.full((2, 3), k), torch.full((2, 3), k)
            assert torch.equal(run(X, one), step(X, two)) and torch.equal(one, two)
    assert capture.n == 2
    assert all(map(torch.equal, before, layer.parameters()))
    assert all(p.grad is None for p in layer.parameters())
    dropped = tracer.compile(torch.nn.Dropout(), options={"verify_correctness": True})
    assert dropped(X).shape == X.shape  # random numbers are not compared


def test_the_recompile_limit_may_be_an_error(capture):
    options = {"recompile_limit": 2, "fail_on_recompile_limit": True}
    run = tracer.compile(lambda a: a + 1, backend=capture, dynamic=False, options=options)
    for size in (2, 3):
        assert torch.equal(run(torch.ones(size)), torch.ones(size) + 1)
    with pytest.raises(RecompileLimitError, match="recompile_limit"):
        run(torch.ones(4))
    assert torch.equal(run(torch.ones(3)), torch.ones(3) + 1) and capture.n == 2
