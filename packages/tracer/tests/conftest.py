"""Fixtures shared by the tests of this package."""

import copy
import os
import types

import numpy as np
import pytest
import torch
import torchsmith_tracer

# A failure of ours is an error, except where a test is about what users see.
os.environ.setdefault("TORCHSMITH_STRICT", "1")


def same(a, b, path="result"):
    """Assert that two objects are equal in value, type, dtype and strides, all the way down."""
    assert type(a) is type(b), f"{path}: {type(a).__name__} against {type(b).__name__}"
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, path
        assert a.shape == b.shape, path
        assert a.stride() == b.stride(), path
        assert a.requires_grad == b.requires_grad, path
        assert torch.equal(a, b) or torch.allclose(a, b, equal_nan=True), path
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides), path
        assert a.flags.writeable == b.flags.writeable, path
        close = np.allclose if a.dtype.kind in "fc" else np.array_equal
        assert close(a, b, **{"equal_nan": True} if a.dtype.kind in "fc" else {}), path
    elif isinstance(a, types.FunctionType):
        assert a.__code__ is b.__code__, path
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            same(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{path}[{i}]")
    elif hasattr(a, "__dict__") and not isinstance(a, type) and type(a).__eq__ is object.__eq__:
        same(vars(a), vars(b), f"vars({path})")
    elif isinstance(a, float) and a != a:
        assert b != b, path
    else:
        assert a == b, f"{path}: {a!r} against {b!r}"


def outcome(fn, args, kwargs):
    """What a call gives: (result, exception, arguments afterwards)."""
    try:
        return fn(*args, **kwargs), None, (args, kwargs)
    except Exception as e:
        return None, e, (args, kwargs)


def differential(fn, compiled, *args, calls=2, **kwargs):
    """Call ``fn`` and ``compiled`` on copies of the arguments, several times, and compare results,
    exceptions and what became of the arguments."""
    for call in range(calls):
        torch.manual_seed(call)
        expected, error, after = outcome(fn, *copy.deepcopy((args, kwargs)))
        torch.manual_seed(call)
        result, own_error, own_after = outcome(compiled, *copy.deepcopy((args, kwargs)))
        if own_error is not None and error is None:
            raise own_error
        assert type(own_error) is type(error), (own_error, error)
        if error is not None:
            assert str(own_error) == str(error)
        same(result, expected)
        same(own_after, after, "arguments")
    return result


class Capture:
    """A backend that keeps every graph and runs it as captured."""

    def __init__(self):
        self.graphs = []
        self.inputs = []

    def __call__(self, gm, example_inputs):
        self.graphs.append(gm)
        self.inputs.append(list(example_inputs))
        return gm.forward

    @property
    def n(self):
        """Number of graphs."""
        return len(self.graphs)

    def placeholders(self, i=-1):
        """Names of the inputs of one graph."""
        return [n.name for n in self.graphs[i].graph.nodes if n.op == "placeholder"]

    def outputs(self, i=-1):
        """The outputs of one graph."""
        return list(next(n for n in self.graphs[i].graph.nodes if n.op == "output").args[0])

    def targets(self, i=-1):
        """What one graph calls."""
        return [n.target for n in self.graphs[i].graph.nodes if n.op.startswith("call")]


@pytest.fixture
def capture():
    return Capture()


@pytest.fixture(autouse=True)
def clean():
    """Each test starts with a known generator state and no compiled code of others."""
    torch.manual_seed(0)
    yield
    torchsmith_tracer.reset()


@pytest.fixture
def check(capture):
    """``check(fn, *args)``: ``fn`` compiled equals ``fn`` eager; gives the number of graphs."""

    def run(fn, *args, calls=2, graphs=None, breaks=None, fullgraph=False, **kwargs):
        compiled = torchsmith_tracer.compile(fn, backend=capture, fullgraph=fullgraph)
        differential(fn, compiled, *args, calls=calls, **kwargs)
        log = compiled._torchsmith_region.log
        if breaks is not None:
            assert [b.name for b in log.breaks] == breaks, [str(b) for b in log.breaks]
        else:
            assert not [str(b) for b in log.breaks]
        if graphs is not None:
            assert capture.n == graphs
        return log

    return run


@pytest.fixture
def agree(capture):
    """``agree(fn, *args)``: like ``check``, with any graph breaks; gives the log."""

    def run(fn, *args, **kwargs):
        compiled = torchsmith_tracer.compile(fn, backend=capture)
        differential(fn, compiled, *args, **kwargs)
        return compiled._torchsmith_region.log

    return run


@pytest.fixture
def program(capture):
    """``program(body)``: ``body(C)`` gives the same with ``C`` a compiler as with ``C`` doing
    nothing, without a break unless ``broken``; gives the number of frames compiled."""

    def run(body, *, broken=False):
        logs = []

        def compiled(fn):
            out = torchsmith_tracer.compile(fn, backend=capture)
            logs.append(out._torchsmith_region.log)
            return out

        torch.manual_seed(0)
        expected, error, _ = outcome(body, (lambda fn: fn,), {})
        torch.manual_seed(0)
        result, own_error, _ = outcome(body, (compiled,), {})
        if own_error is not None and error is None:
            raise own_error
        assert (type(own_error), str(own_error)) == (type(error), str(error))
        same(result, expected)
        assert broken or not [str(b) for log in logs for b in log.breaks]
        return sum(len(log.frames) for log in logs)

    return run
